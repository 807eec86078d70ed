// y (+)= x * w^T by cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>

#include "harness/backend/backend.h"
#include "harness/backend/cuda/check.h"

namespace eb::backend::cuda {

[[nodiscard]] std::unique_ptr<Matrix> make_device_matrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k);

// One stream's products: the workspace is shared by all calls, so they must be in stream order. Chosen algorithms are
// kept by shape; the first call of a shape asks the heuristic. Host thread only.
class Linear {
 public:
  Linear();
  ~Linear();
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;
  // Errors: Error(failure) with the shape where cuBLASLt has no algorithm for it. Returns how many kernels the product
  // takes: cuBLASLt splits some. The first call of a shape must not be captured.
  std::int64_t run(const LinearArgs& args, cudaStream_t stream);

 private:
  struct Product;
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;
  Product& product(const LinearArgs& args);
  void enqueue(const Product& product, const LinearArgs& args, const void* w, cudaStream_t stream);
  [[nodiscard]] std::int64_t count_kernels(const Product& product, const LinearArgs& args, const void* w);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  OwnedStream counting_;  // where a product is captured to see its kernels
  std::map<Key, std::unique_ptr<Product>> products_;
};

}  // namespace eb::backend::cuda
