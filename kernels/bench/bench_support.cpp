#include "kernels/bench/bench_support.h"

#include <benchmark/benchmark.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/engram/content.h"
#include "kernels/cpu_variant.h"
#include "kernels/pretouch.h"
#include "placement/backing.h"

namespace eb::bench {
namespace {

constexpr std::int64_t kDim = 256;
constexpr std::int64_t kScales = 8;
constexpr std::int64_t kInterleavedStride = 272;
constexpr std::int64_t kHeadroomBytes = std::int64_t{1} << 30;

}  // namespace

std::size_t table_bytes_wanted(std::size_t fallback) {
  const char* text = std::getenv("ENGRAM_BENCH_TABLE_BYTES");
  if (text == nullptr) return fallback;
  std::size_t bytes = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, bytes);
  if (error != std::errc{} || rest != end || bytes < (std::size_t{1} << 20)) {
    fail(Exit::usage, "ENGRAM_BENCH_TABLE_BYTES={}: a number of bytes of at least 1048576 is needed", text);
  }
  return bytes;
}

std::string memory_obstacle(std::size_t bytes) {
  const placement::MemoryLimits limits = placement::read_memory_limits();
  const auto need = static_cast<std::int64_t>(bytes) + kHeadroomBytes;
  for (const std::int64_t free : {limits.available_bytes, limits.cgroup_free_bytes}) {
    if (free >= 0 && free < need) {
      return fmt::format("needs {} bytes ({} of headroom in them), {} are free; set ENGRAM_BENCH_TABLE_BYTES lower",
                         need, kHeadroomBytes, free);
    }
  }
  return {};
}

Mapping make_table_memory(std::size_t bytes) {
  const UniqueFd fd = make_memfd("engram-bench-table", bytes);
  Mapping memory = Mapping::shared(fd.get(), bytes, "bench table");
  const auto threads = std::max(1U, std::thread::hardware_concurrency());
  kernels::pretouch(memory.data(), bytes, static_cast<int>(threads));
  std::vector<std::jthread> writers;
  const std::size_t words = bytes / sizeof(std::uint64_t);
  for (unsigned t = 0; t < threads; ++t) {
    writers.emplace_back([&memory, words, t, threads] {
      auto* word = reinterpret_cast<std::uint64_t*>(memory.data());
      for (std::size_t i = words / threads * t; i < (t + 1 == threads ? words : words / threads * (t + 1)); ++i) {
        // Bytes 0x70..0x77: E4M3 numbers 128..240, scales 2^-15..2^-8.
        word[i] = (engram::splitmix64(i) & 0x0707070707070707U) | 0x7070707070707070U;
      }
    });
  }
  return memory;
}

kernels::TableView split_table(const Mapping& memory) {
  kernels::TableView table;
  table.rows = static_cast<std::int64_t>(memory.size()) / (kDim + kScales);
  table.weights = memory.data();
  table.scales = memory.data() + table.rows * kDim;
  table.weight_stride = kDim;
  table.scale_stride = kScales;
  table.dim = kDim;
  table.block = kDim / kScales;
  return table;
}

kernels::TableView interleaved_table(const Mapping& memory) {
  kernels::TableView table = split_table(memory);
  table.rows = static_cast<std::int64_t>(memory.size()) / kInterleavedStride;
  table.scales = memory.data() + kDim;
  table.weight_stride = kInterleavedStride;
  table.scale_stride = kInterleavedStride;
  return table;
}

std::vector<std::int32_t> random_ids(std::size_t count, std::int64_t rows, std::uint64_t seed) {
  std::vector<std::int32_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    ids[i] = static_cast<std::int32_t>(engram::splitmix64(seed + i) % static_cast<std::uint64_t>(rows));
  }
  return ids;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int run_benchmarks(int argc, char** argv) {
  benchmark::AddCustomContext("instruction_set", kernels::name(kernels::best_variant()));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return static_cast<int>(Exit::usage);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace eb::bench
