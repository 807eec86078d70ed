// Kernels and fills that a capture holds in a row, launched again one by one: what a library's call puts on a stream,
// without what the library does on the host each time.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <optional>
#include <vector>

namespace eb::backend::cuda {

// Owns the capture, whose arguments the launches use. Every launch has the arguments that were captured: addresses,
// not contents. Host thread only.
class LaunchList {
 public:
  // Takes `graph` over. Nothing where the capture holds anything else than a chain of kernels and plain fills, or where
  // the driver lacks a call that this needs; the graph is given back then.
  static std::optional<LaunchList> from(cudaGraph_t graph);
  LaunchList(LaunchList&& other) noexcept;
  LaunchList& operator=(LaunchList&& other) noexcept;
  LaunchList(const LaunchList&) = delete;
  LaunchList& operator=(const LaunchList&) = delete;
  ~LaunchList();

  // Errors: those of the first launch that fails.
  [[nodiscard]] CUresult launch(cudaStream_t stream) const;
  [[nodiscard]] std::size_t size() const noexcept { return steps_.size(); }

 private:
  struct Step {
    CUfunction function = nullptr;  // null: a fill
    CUlaunchConfig config{};
    std::vector<CUlaunchAttribute> attributes;
    void** arguments = nullptr;
    void** extra = nullptr;
    CUDA_MEMSET_NODE_PARAMS fill{};
  };
  LaunchList() = default;
  [[nodiscard]] bool add_kernel(CUgraphNode node);
  [[nodiscard]] bool add_fill(CUgraphNode node);

  cudaGraph_t graph_ = nullptr;
  std::vector<Step> steps_;
};

}  // namespace eb::backend::cuda
