// y (+)= x * w^T by cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>

#include "harness/backend/backend.h"
#include "harness/backend/cuda/check.h"
#include "harness/backend/cuda/launch_list.h"

namespace eb::backend::cuda {

[[nodiscard]] std::unique_ptr<Matrix> make_device_matrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k);

// One stream's products: the workspace is shared by all calls, so they must be in stream order. Chosen algorithms are
// kept by shape; the first call of a shape asks the heuristic. A product that comes again with the same addresses has
// its kernels launched as they were captured: cublasLtMatmul takes the host two to three times as long
// (docs/performance.md). Host thread only.
class Linear {
 public:
  Linear();
  ~Linear();
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;
  // Errors: Error(failure) with the shape where cuBLASLt has no algorithm for it. Returns how many kernels the product
  // takes: cuBLASLt splits some. The first call with these arguments must not be captured.
  std::int64_t run(const LinearArgs& args, cudaStream_t stream);

 private:
  struct Product;
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;
  Product& product(const LinearArgs& args);
  void enqueue(const Product& product, const LinearArgs& args, const void* w, cudaStream_t stream);
  // One product as it was called: all that its kernels' arguments come from.
  struct Call {
    const void* x = nullptr;
    const void* w = nullptr;
    const void* y = nullptr;
    std::int64_t m = 0;
    std::int64_t ldx = 0;
    std::int64_t ldy = 0;
    std::uint32_t scale_bits = 0;
    friend bool operator==(const Call&, const Call&) = default;
  };
  struct CallHash {
    std::size_t operator()(const Call& call) const noexcept;
  };
  struct Known {
    std::int64_t kernels = 0;
    std::optional<LaunchList> launches;  // none: only cuBLASLt itself can do it
  };
  Known capture(const Product& product, const LinearArgs& args, const void* w);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  OwnedStream counting_;  // where a product is captured to see its kernels
  std::map<Key, std::unique_ptr<Product>> products_;
  std::unordered_map<Call, Known, CallHash> calls_;
};

}  // namespace eb::backend::cuda
