#include "harness/backend/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <new>

#include "harness/base/error.h"

namespace eb::backend::cpu {

FloatMatrix::FloatMatrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k) : n_(n), k_(k) {
  if (n <= 0 || k <= 0 || values.size() != static_cast<std::size_t>(n) * static_cast<std::size_t>(k)) {
    fail(Exit::failure, "a matrix of {} x {} was given {} values", n, k, values.size());
  }
  try {
    values_ = std::make_unique_for_overwrite<float[]>(values.size());
  } catch (const std::bad_alloc&) {
    fail(Exit::failure, "no memory for a matrix of {} x {} as float32 ({} bytes); lower the backbone's scale", n, k,
         values.size() * sizeof(float));
  }
  std::transform(values.begin(), values.end(), values_.get(), [](Bf16 value) { return to_float(value); });
}

void linear(const LinearArgs& args, const FloatMatrix& w, GemmScratch& scratch) {
  const std::int64_t n = w.n();
  const std::int64_t k = w.k();
  const auto most = static_cast<std::size_t>(std::min(args.m, kGemmRows));
  if (scratch.x.size() < most * static_cast<std::size_t>(k)) scratch.x.resize(most * static_cast<std::size_t>(k));
  if (scratch.y.size() < most * static_cast<std::size_t>(n)) scratch.y.resize(most * static_cast<std::size_t>(n));
  for (std::int64_t first = 0; first < args.m; first += kGemmRows) {
    const std::int64_t rows = std::min(kGemmRows, args.m - first);
    for (std::int64_t row = 0; row < rows; ++row) {
      const Bf16* from = args.x + (first + row) * args.ldx;
      std::transform(from, from + k, scratch.x.data() + row * k, [](Bf16 value) { return to_float(value); });
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(rows), static_cast<blasint>(n),
                static_cast<blasint>(k), 1.0F, scratch.x.data(), static_cast<blasint>(k), w.data(),
                static_cast<blasint>(k), 0.0F, scratch.y.data(), static_cast<blasint>(n));
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* product = scratch.y.data() + row * n;
      Bf16* to = args.y + (first + row) * args.ldy;
      if (args.accumulate_scale == 0) {
        for (std::int64_t i = 0; i < n; ++i) to[i] = to_bf16(product[i]);
      } else {
        for (std::int64_t i = 0; i < n; ++i) to[i] = to_bf16(to_float(to[i]) + args.accumulate_scale * product[i]);
      }
    }
  }
}

}  // namespace eb::backend::cpu
