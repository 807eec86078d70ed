// Gate on the CPU. Sums run in kLanes float32 lanes, element i in lane i % kLanes, then down a fixed tree: the order is
// part of the kernel, not of the instruction set, so every variant gives the same bits. Products are rounded before
// they are added (this file is compiled without contraction).
//
// Error: a lane adds dim/kLanes products of relative error 3*2^-24, the tree adds log2(kLanes) roundings; a sum of n
// terms t_i is off by at most (n/kLanes + log2(kLanes) + 3) * 2^-24 * sum |t_i|. The tests hold the kernel to that.
#include "kernels/gate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "kernels/cpu_variant.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace eb::kernels {
namespace {

constexpr int kLanes = 32;

struct LaneSums {
  alignas(64) std::array<float, kLanes> hidden2{};
  alignas(64) std::array<float, kLanes> key2{};
  alignas(64) std::array<float, kLanes> dot{};
};

// One copy of one token: what the sums run over, each [dim].
struct Vectors {
  const Bf16* hidden;
  const Bf16* key;
  const Bf16* q;
  const Bf16* k;
};

inline void add_element(const Vectors& in, std::int32_t i, LaneSums& sums) noexcept {
  const auto lane = static_cast<std::size_t>(i % kLanes);
  const float hidden = to_float(in.hidden[i]);
  const float key = to_float(in.key[i]);
  sums.hidden2[lane] += hidden * hidden;
  sums.key2[lane] += key * key;
  sums.dot[lane] += hidden * to_float(in.q[i]) * to_float(in.k[i]) * key;
}

inline void update_element(Bf16* hidden, const Bf16* value, float gate, std::int32_t i) noexcept {
  hidden[i] = to_bf16(to_float(hidden[i]) + gate * to_float(value[i]));
}

// Whole groups of kLanes elements; returns how many elements were done. The rest is the caller's.
using SumKernel = std::int32_t (*)(const Vectors& in, std::int32_t dim, LaneSums& sums);
using UpdateKernel = std::int32_t (*)(Bf16* hidden, const Bf16* value, float gate, std::int32_t dim);

std::int32_t sum_baseline(const Vectors&, std::int32_t, LaneSums&) { return 0; }
std::int32_t update_baseline(Bf16*, const Bf16*, float, std::int32_t) { return 0; }

#if defined(__x86_64__)

#define EB_AVX2 __attribute__((target("avx2")))
#define EB_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

EB_AVX2 inline __m256 load8(const Bf16* values) noexcept {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// to_bf16() of eight floats, in the low half of each 32-bit lane.
EB_AVX2 inline __m256i round8(__m256 values) noexcept {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}

EB_AVX2 std::int32_t sum_avx2(const Vectors& in, std::int32_t dim, LaneSums& sums) {
  constexpr std::int32_t kParts = kLanes / 8;
  __m256 hidden2[kParts];
  __m256 key2[kParts];
  __m256 dot[kParts];
  for (std::int32_t p = 0; p < kParts; ++p) hidden2[p] = key2[p] = dot[p] = _mm256_setzero_ps();
  std::int32_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
#pragma GCC unroll 4
    for (std::int32_t p = 0; p < kParts; ++p) {
      const std::int32_t at = i + 8 * p;
      const __m256 hidden = load8(in.hidden + at);
      const __m256 key = load8(in.key + at);
      hidden2[p] = _mm256_add_ps(hidden2[p], _mm256_mul_ps(hidden, hidden));
      key2[p] = _mm256_add_ps(key2[p], _mm256_mul_ps(key, key));
      const __m256 product = _mm256_mul_ps(_mm256_mul_ps(hidden, load8(in.q + at)), load8(in.k + at));
      dot[p] = _mm256_add_ps(dot[p], _mm256_mul_ps(product, key));
    }
  }
  for (std::int32_t p = 0; p < kParts; ++p) {
    _mm256_store_ps(sums.hidden2.data() + 8 * p, hidden2[p]);
    _mm256_store_ps(sums.key2.data() + 8 * p, key2[p]);
    _mm256_store_ps(sums.dot.data() + 8 * p, dot[p]);
  }
  return i;
}

EB_AVX2 std::int32_t update_avx2(Bf16* hidden, const Bf16* value, float gate, std::int32_t dim) {
  const __m256 factor = _mm256_set1_ps(gate);
  std::int32_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    const __m256i low = round8(_mm256_add_ps(load8(hidden + i), _mm256_mul_ps(factor, load8(value + i))));
    const __m256i high = round8(_mm256_add_ps(load8(hidden + i + 8), _mm256_mul_ps(factor, load8(value + i + 8))));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(hidden + i),
                        _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8));
  }
  return i;
}

EB_AVX512 inline __m512 load16(const Bf16* values) noexcept {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

EB_AVX512 std::int32_t sum_avx512(const Vectors& in, std::int32_t dim, LaneSums& sums) {
  constexpr std::int32_t kParts = kLanes / 16;
  __m512 hidden2[kParts];
  __m512 key2[kParts];
  __m512 dot[kParts];
  for (std::int32_t p = 0; p < kParts; ++p) hidden2[p] = key2[p] = dot[p] = _mm512_setzero_ps();
  std::int32_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
#pragma GCC unroll 2
    for (std::int32_t p = 0; p < kParts; ++p) {
      const std::int32_t at = i + 16 * p;
      const __m512 hidden = load16(in.hidden + at);
      const __m512 key = load16(in.key + at);
      hidden2[p] = _mm512_add_ps(hidden2[p], _mm512_mul_ps(hidden, hidden));
      key2[p] = _mm512_add_ps(key2[p], _mm512_mul_ps(key, key));
      const __m512 product = _mm512_mul_ps(_mm512_mul_ps(hidden, load16(in.q + at)), load16(in.k + at));
      dot[p] = _mm512_add_ps(dot[p], _mm512_mul_ps(product, key));
    }
  }
  for (std::int32_t p = 0; p < kParts; ++p) {
    _mm512_store_ps(sums.hidden2.data() + 16 * p, hidden2[p]);
    _mm512_store_ps(sums.key2.data() + 16 * p, key2[p]);
    _mm512_store_ps(sums.dot.data() + 16 * p, dot[p]);
  }
  return i;
}

// AVX512_BF16's conversion is not used: it flushes denormals.
EB_AVX512 std::int32_t update_avx512(Bf16* hidden, const Bf16* value, float gate, std::int32_t dim) {
  const __m512 factor = _mm512_set1_ps(gate);
  std::int32_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    const __m512 sum = _mm512_add_ps(load16(hidden + i), _mm512_mul_ps(factor, load16(value + i)));
    const __m512i bits = _mm512_castps_si512(sum);
    const __m512i top = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, top, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(hidden + i), _mm512_cvtepi32_epi16(result));
  }
  return i;
}

#endif  // __x86_64__

struct Kernels {
  SumKernel sum = sum_baseline;
  UpdateKernel update = update_baseline;
};

Kernels kernels_of(CpuVariant variant) noexcept {
#if defined(__x86_64__)
  if (variant == CpuVariant::avx512) return {sum_avx512, update_avx512};
  if (variant == CpuVariant::avx2) return {sum_avx2, update_avx2};
#else
  static_cast<void>(variant);
#endif
  return {};
}

float reduce(std::array<float, kLanes> lanes) noexcept {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// From the sums to g. In double: one value a copy, and exp in float differs between machines' libraries.
float gate_value(const LaneSums& sums, std::int32_t dim, float eps) noexcept {
  const double hidden_mean = static_cast<double>(reduce(sums.hidden2)) / dim;
  const double key_mean = static_cast<double>(reduce(sums.key2)) / dim;
  const double d = static_cast<double>(reduce(sums.dot)) / std::sqrt(hidden_mean + static_cast<double>(eps)) /
                   std::sqrt(key_mean + static_cast<double>(eps)) / std::sqrt(static_cast<double>(dim));
  const double root = std::sqrt(std::max(std::fabs(d), 1e-6));
  return static_cast<float>(1.0 / (1.0 + std::exp(d < 0 ? root : -root)));
}

}  // namespace

void gate_tokens(const GateArgs& args, std::int64_t first, std::int64_t last, CpuVariant variant) {
  const Kernels kernels = kernels_of(variant);
  const std::int32_t dim = args.dim;
  for (std::int64_t token = first; token < last; ++token) {
    if (args.masked != nullptr && args.masked[token] != 0) continue;  // g = 0: hidden stays, bit for bit
    const Bf16* kv = args.kv + token * (args.copies + 1) * dim;
    const Bf16* value = kv + static_cast<std::int64_t>(args.copies) * dim;
    for (std::int64_t copy = 0; copy < args.copies; ++copy) {
      Bf16* hidden = args.hidden + (token * args.copies + copy) * dim;
      const Vectors in{hidden, kv + copy * dim, args.q + copy * dim, args.k + copy * dim};
      LaneSums sums;
      for (std::int32_t i = kernels.sum(in, dim, sums); i < dim; ++i) add_element(in, i, sums);
      const float gate = gate_value(sums, dim, args.eps);
      for (std::int32_t i = kernels.update(hidden, value, gate, dim); i < dim; ++i) {
        update_element(hidden, value, gate, i);
      }
    }
  }
}

void gate_tokens(const GateArgs& args, std::int64_t first, std::int64_t last) {
  gate_tokens(args, first, last, best_variant());
}

}  // namespace eb::kernels
