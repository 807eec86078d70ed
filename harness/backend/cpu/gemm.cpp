#include "harness/backend/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <new>

#include "harness/base/error.h"

// At -O2 GCC leaves these loops scalar, and they took a fifth of a small step's processor time. They round as the
// scalar functions do: there is no sum whose order could change.
#if defined(__GNUC__) && !defined(__clang__)
#define EB_VECTORISED __attribute__((optimize("O3"), noinline))
#else
#define EB_VECTORISED
#endif

namespace eb::backend::cpu {

namespace {

EB_VECTORISED void widen(const Bf16* __restrict from, float* __restrict to, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

EB_VECTORISED void round_to(const float* __restrict from, Bf16* __restrict to, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
}

EB_VECTORISED void add_scaled(const float* __restrict from, float scale, Bf16* __restrict to,
                              std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_bf16(to_float(to[i]) + scale * from[i]);
}

}  // namespace

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
  widen(values.data(), values_.get(), n * k);
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
      widen(args.x + (first + row) * args.ldx, scratch.x.data() + row * k, k);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(rows), static_cast<blasint>(n),
                static_cast<blasint>(k), 1.0F, scratch.x.data(), static_cast<blasint>(k), w.data(),
                static_cast<blasint>(k), 0.0F, scratch.y.data(), static_cast<blasint>(n));
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* product = scratch.y.data() + row * n;
      Bf16* to = args.y + (first + row) * args.ldy;
      if (args.accumulate_scale == 0) {
        round_to(product, to, n);
      } else {
        add_scaled(product, args.accumulate_scale, to, n);
      }
    }
  }
}

}  // namespace eb::backend::cpu
