// The CUDA backend as the rest of the program sees it: no CUDA header. Its code lies in a module of its own
// (libengram-bench-cuda.so, beside the program) that is loaded when a GPU is asked for, so that the program starts on
// machines without CUDA's libraries.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/backend/backend.h"

namespace eb::backend::cuda {

struct Options {
  int device = 0;  // CUDA's index
  int rank = 0;
  Arena arena;                    // through which ranks that share a device, or lack NCCL, exchange messages
  std::vector<GroupSpec> groups;  // as in CpuOptions
  std::atomic<std::uint32_t>* waiting = nullptr;
};

struct Probe {
  int devices = 0;
  std::vector<int> numa_nodes;  // of each device; -1: the system states none
  std::vector<std::int64_t> memory_bytes;
  std::string
      reason;  // why there is none: no module in this build, no driver, a driver older than the runtime, no device
};

// Never throws: a machine without a GPU is an answer.
[[nodiscard]] Probe probe() noexcept;

// Errors: Error(skipped) with Probe's reason; Error(failure) for a device index that does not exist or a device that
// cannot be opened.
[[nodiscard]] std::unique_ptr<Backend> make_backend(const Options& options);

// What the module exports under these names.
inline constexpr const char* kProbeSymbol = "engram_bench_cuda_probe";
inline constexpr const char* kMakeSymbol = "engram_bench_cuda_make_backend";
using ProbeFunction = void (*)(Probe*);
using MakeFunction = void (*)(const Options*, std::unique_ptr<Backend>*);

}  // namespace eb::backend::cuda
