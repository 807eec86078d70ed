// Hash on the CPU: exact 64-bit integers. The rolling value is below 2^63 (a multiplier times an id of the vocabulary
// stays below it, and xor keeps it there), so the remainder is taken unsigned, without a division instruction:
//   baseline  q = high 64 bits of x * floor((2^64 - 1) / p); x/p - q < 1 + x/2^64 < 2, so one subtraction corrects it;
//   avx512    q = trunc(double(x) * (1/p)) for eight heads at once. Three roundings of 2^-53 on a quotient of at most
//             2^63/p make an error below 3072/p, so for p >= 4096 q is off by at most one, either way.
// AVX2 has no 64-bit multiplication, no conversion of 64-bit integers: it would not beat the baseline, which it shares.
#include "kernels/hash.h"

#include <array>
#include <cstdint>

#include "kernels/cpu_variant.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace eb::kernels {
namespace {

constexpr int kShifts = kLookBack + 1;
constexpr std::int64_t kSmallestVectorPrime = 4096;

// rolling[s]: xor of the first s + 1 look-back products, what the n-grams of size s + 1 share.
inline std::array<std::uint64_t, kShifts> rolling_values(const HashArgs& args, const HashLayer& layer,
                                                         std::int64_t token) noexcept {
  const std::int32_t* context = args.context + args.position[token];
  std::array<std::uint64_t, kShifts> rolling;
  std::uint64_t sum = 0;
  bool blocked = false;
  for (int shift = 0; shift < kShifts; ++shift) {
    const std::int32_t id = context[-shift];
    blocked = blocked || id < 0;
    const auto value = static_cast<std::uint64_t>(blocked ? args.pad_id : id);
    sum ^= value * static_cast<std::uint64_t>(layer.multipliers[shift]);
    rolling[static_cast<std::size_t>(shift)] = sum;
  }
  return rolling;
}

inline std::int32_t* ids_of(const HashArgs& args, std::int64_t token, int layer) noexcept {
  return args.ids + (token * args.layer_count + layer) * args.columns;
}

void hash_layer_baseline(const HashArgs& args, int index, std::int64_t first, std::int64_t last) {
  const HashLayer& layer = args.layers[index];
  std::array<std::uint64_t, kMaxColumns> magic;
  for (int c = 0; c < args.columns; ++c) magic[c] = UINT64_MAX / static_cast<std::uint64_t>(layer.primes[c]);
  for (std::int64_t token = first; token < last; ++token) {
    const auto rolling = rolling_values(args, layer, token);
    std::int32_t* ids = ids_of(args, token, index);
    for (int c = 0; c < args.columns; ++c) {
      const std::uint64_t x = rolling[static_cast<std::size_t>(args.column_ngram[c] - 1)];
      const auto prime = static_cast<std::uint64_t>(layer.primes[c]);
      const auto quotient = static_cast<std::uint64_t>((static_cast<unsigned __int128>(x) * magic[c]) >> 64);
      std::uint64_t rest = x - quotient * prime;
      rest = rest >= prime ? rest - prime : rest;
      ids[c] = static_cast<std::int32_t>(static_cast<std::int64_t>(rest) + layer.offsets[c]);
    }
  }
}

#if defined(__x86_64__)

// Up to eight neighbouring columns of one n-gram size.
struct Group {
  alignas(64) std::array<std::int64_t, 8> primes;
  alignas(64) std::array<double, 8> inverses;
  alignas(64) std::array<std::int64_t, 8> offsets;
  int first_column = 0;
  std::size_t shift = 0;
  std::uint8_t lanes = 0;  // mask
};

// Returns the number of groups; 0 where a prime is too small for the double quotient.
int make_groups(const HashArgs& args, const HashLayer& layer, std::array<Group, kMaxColumns>& groups) {
  int count = 0;
  for (int c = 0; c < args.columns;) {
    Group& group = groups[static_cast<std::size_t>(count++)];
    group.primes.fill(kSmallestVectorPrime);
    group.inverses.fill(0);
    group.offsets.fill(0);
    group.first_column = c;
    group.shift = static_cast<std::size_t>(args.column_ngram[c] - 1);
    group.lanes = 0;
    const std::int32_t ngram = args.column_ngram[c];
    for (std::size_t lane = 0; lane < 8 && c < args.columns && args.column_ngram[c] == ngram; ++lane, ++c) {
      if (layer.primes[c] < kSmallestVectorPrime) return 0;
      group.primes[lane] = layer.primes[c];
      group.inverses[lane] = 1.0 / static_cast<double>(layer.primes[c]);
      group.offsets[lane] = layer.offsets[c];
      group.lanes = static_cast<std::uint8_t>(group.lanes | (1U << lane));
    }
  }
  return count;
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void hash_layer_avx512(const HashArgs& args, int index,
                                                                                     std::int64_t first,
                                                                                     std::int64_t last) {
  const HashLayer& layer = args.layers[index];
  std::array<Group, kMaxColumns> groups;
  const int count = make_groups(args, layer, groups);
  if (count == 0) return hash_layer_baseline(args, index, first, last);
  for (std::int64_t token = first; token < last; ++token) {
    const auto rolling = rolling_values(args, layer, token);
    std::int32_t* ids = ids_of(args, token, index);
    for (int g = 0; g < count; ++g) {
      const Group& group = groups[static_cast<std::size_t>(g)];
      const __m512i x = _mm512_set1_epi64(static_cast<std::int64_t>(rolling[group.shift]));
      const __m512i prime = _mm512_load_si512(group.primes.data());
      const __m512i quotient =
          _mm512_cvttpd_epi64(_mm512_mul_pd(_mm512_cvtepi64_pd(x), _mm512_load_pd(group.inverses.data())));
      __m512i rest = _mm512_sub_epi64(x, _mm512_mullo_epi64(quotient, prime));
      // A quotient one too large left a negative rest, a huge unsigned number; one too small left a rest >= prime.
      rest = _mm512_min_epu64(rest, _mm512_add_epi64(rest, prime));
      rest = _mm512_min_epu64(rest, _mm512_sub_epi64(rest, prime));
      const __m256i id = _mm512_cvtepi64_epi32(_mm512_add_epi64(rest, _mm512_load_si512(group.offsets.data())));
      _mm256_mask_storeu_epi32(ids + group.first_column, group.lanes, id);
    }
  }
}

#endif  // __x86_64__

}  // namespace

void hash_tokens(const HashArgs& args, std::int64_t first, std::int64_t last, CpuVariant variant) {
  for (int layer = 0; layer < args.layer_count; ++layer) {
#if defined(__x86_64__)
    if (variant == CpuVariant::avx512) {
      hash_layer_avx512(args, layer, first, last);
      continue;
    }
#else
    static_cast<void>(variant);
#endif
    hash_layer_baseline(args, layer, first, last);
  }
}

void hash_tokens(const HashArgs& args, std::int64_t first, std::int64_t last) {
  hash_tokens(args, first, last, best_variant());
}

}  // namespace eb::kernels
