// y (+)= x * w^T by OpenBLAS, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "harness/backend/backend.h"

namespace eb::backend::cpu {

// A BF16 matrix held as float32: converted once, since SGEMM has no BF16 operand.
class FloatMatrix {
 public:
  // Errors: Error(failure) where `values` is not n*k long, or memory does not suffice.
  FloatMatrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k);
  [[nodiscard]] const float* data() const noexcept { return values_.get(); }
  [[nodiscard]] std::int64_t n() const noexcept { return n_; }
  [[nodiscard]] std::int64_t k() const noexcept { return k_; }

 private:
  std::int64_t n_;
  std::int64_t k_;
  std::unique_ptr<float[]> values_;
};

// Float copies of x and y of one thread; grows to the largest call and stays.
struct GemmScratch {
  std::vector<float> x;
  std::vector<float> y;
};

// `args` with `w` as its matrix. x is converted per call, y is rounded once; rows are taken kGemmRows at a time, which
// bounds the scratch.
inline constexpr std::int64_t kGemmRows = 128;
void linear(const LinearArgs& args, const FloatMatrix& w, GemmScratch& scratch);

}  // namespace eb::backend::cpu
