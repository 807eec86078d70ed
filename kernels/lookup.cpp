// Lookup on the CPU. The walk over the rows is one piece of plain code; what differs between instruction sets is the
// function that turns one stored row into BF16. Random rows of a huge table miss every cache and the TLB, so the walk
// resolves ids and prefetches kPrefetchRows rows before it needs them.
//
// Dequantisation without floating point: each E4M3 value is a BF16 value, and a scale is a power of two, so as long as
// no exponent leaves BF16's normal range the product is the value's bits with the exponents added. That holds for
// scale bytes kFirstPlainScale..kLastPlainScale (2^-9 and 448 are the smallest and largest E4M3 magnitudes). Blocks
// with another scale byte (denormal results, overflow, zero, infinity) take the multiplication, rounded once. Zero and
// NaN codes have no exponent to add to and are masked.
#include "kernels/lookup.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/cpu_variant.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace eb::kernels {
namespace {

constexpr std::size_t kLineBytes = 64;

constexpr unsigned kFirstPlainScale = 10;
constexpr unsigned kLastPlainScale = 246;

constexpr bool is_plain(unsigned scale) noexcept {
  return scale - kFirstPlainScale <= kLastPlainScale - kFirstPlainScale;
}

// What is added to the bits of a BF16 value to multiply it by 2^(scale - 127).
constexpr std::uint16_t exponent_step(unsigned scale) noexcept {
  return static_cast<std::uint16_t>((scale - 127) << 7);
}

constexpr float e4m3_value(unsigned code) noexcept {
  const unsigned exponent = (code >> 3) & 15U;
  const unsigned mantissa = code & 7U;
  const std::uint32_t sign = (code & 0x80U) << 24;
  if ((code & 0x7FU) == 0x7FU) return std::bit_cast<float>(sign | 0x7FC00000U);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9F
                                        : std::bit_cast<float>((exponent + 120U) << 23 | mantissa << 20);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

// For each E4M3 code its BF16 bits (low half), and all ones in the high half where an exponent may be added.
constexpr std::array<std::uint32_t, 256> kCodes = [] {
  std::array<std::uint32_t, 256> codes{};
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned magnitude = code & 0x7FU;
    if (magnitude == 0x7FU) {
      codes[code] = kBf16Nan.bits;
    } else {
      codes[code] = to_bf16(e4m3_value(code)).bits | (magnitude == 0 ? 0U : 0xFFFF0000U);
    }
  }
  return codes;
}();

constexpr std::array<float, 256> kValues = [] {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code) values[code] = e4m3_value(code);
  return values;
}();

// `count` elements that share a scale, any scale byte.
void scale_elements(const std::uint8_t* weights, unsigned scale, std::int64_t count, Bf16* out) {
  if (is_plain(scale)) {
    const std::uint32_t step = exponent_step(scale);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t code = kCodes[weights[i]];
      out[i].bits = static_cast<std::uint16_t>(code + ((code >> 16) & step));
    }
    return;
  }
  const float factor = std::bit_cast<float>(static_cast<std::uint32_t>(scale) << 23);
  for (std::int64_t i = 0; i < count; ++i) {
    const float product = kValues[weights[i]] * factor;
    out[i] = std::isnan(product) ? kBf16Nan : to_bf16(product);
  }
}

// Tiles of a program that are resolved and prefetched together. Two took fewer ns a row than one: docs/performance.md.
constexpr std::int64_t kGroupTiles = 2;

// The rows of these tiles, resolved; one array a field.
struct Tile {
  std::size_t rows = 0;
  std::array<const std::uint8_t*, kGroupTiles * kTileRows> weights;  // null: a zero row
  std::array<const std::uint8_t*, kGroupTiles * kTileRows> scales;
  std::array<Bf16*, kGroupTiles * kTileRows> out;
};

// Writes every row of the tile.
using TileKernel = void (*)(const TableView& table, const Tile& tile);

void zero_row(const TableView& table, Bf16* out) { std::fill_n(out, table.dim, Bf16{}); }

void copy_tile(const TableView& table, const Tile& tile) {
  for (std::size_t i = 0; i < tile.rows; ++i) {
    if (tile.weights[i] == nullptr) {
      zero_row(table, tile.out[i]);
    } else {
      std::memcpy(tile.out[i], tile.weights[i], static_cast<std::size_t>(table.dim) * sizeof(Bf16));
    }
  }
}

// Elements [first, table.dim) of a row; `first` begins a block.
void dequantise_rest(const TableView& table, const std::uint8_t* weights, const std::uint8_t* scales,
                     std::int64_t first, Bf16* out) {
  for (const std::uint8_t* scale = scales + first / table.block; first < table.dim; first += table.block) {
    const std::int64_t count = std::min<std::int64_t>(table.block, table.dim - first);
    scale_elements(weights + first, *scale++, count, out + first);
  }
}

void tile_baseline(const TableView& table, const Tile& tile) {
  for (std::size_t i = 0; i < tile.rows; ++i) {
    if (tile.weights[i] == nullptr) {
      zero_row(table, tile.out[i]);
    } else {
      dequantise_rest(table, tile.weights[i], tile.scales[i], 0, tile.out[i]);
    }
  }
}

#if defined(__x86_64__)

// 32 elements of one block at a time: block is a multiple of 32.
constexpr std::int64_t kPiece = 32;

// Bytes in, words out: the BF16 bits of a magnitude's low and high byte. Magnitudes below 16 (denormals, and the first
// normal binade) come from two 16-entry tables, the others are shifted into place (bias 127 - 7 = 120).
__attribute__((target("avx2"))) void dequantise_avx2(const TableView& table, const std::uint8_t* weights,
                                                     const std::uint8_t* scales, Bf16* out) {
  alignas(16) static constexpr std::array<std::array<std::uint8_t, 16>, 2> kSmall = [] {
    std::array<std::array<std::uint8_t, 16>, 2> bytes{};
    for (unsigned code = 0; code < 16; ++code) {
      bytes[0][code] = static_cast<std::uint8_t>(kCodes[code]);
      bytes[1][code] = static_cast<std::uint8_t>(kCodes[code] >> 8);
    }
    return bytes;
  }();
  const __m256i small_low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(&kSmall[0])));
  const __m256i small_high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(&kSmall[1])));
  const __m256i magnitude_bits = _mm256_set1_epi8(0x7F);
  __m256i nan = _mm256_setzero_si256();
  for (std::int64_t first = 0; first < table.dim; first += table.block) {
    const unsigned scale = scales[first / table.block];
    const std::int64_t end = std::min<std::int64_t>(first + table.block, table.dim);
    std::int64_t at = first;
    if (is_plain(scale)) {
      const __m256i step = _mm256_set1_epi16(static_cast<std::int16_t>(exponent_step(scale)));
      for (; at + kPiece <= end; at += kPiece) {
        // The quarters are swapped so that the in-lane unpacks below deliver elements in order.
        const __m256i codes =
            _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + at)), 0xD8);
        const __m256i magnitude = _mm256_and_si256(codes, magnitude_bits);
        const __m256i sign = _mm256_andnot_si256(magnitude_bits, codes);
        nan = _mm256_or_si256(nan, _mm256_cmpeq_epi8(magnitude, magnitude_bits));
        const __m256i zero = _mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256());
        const __m256i is_small = _mm256_cmpgt_epi8(_mm256_set1_epi8(16), magnitude);
        const __m256i low = _mm256_blendv_epi8(
            _mm256_and_si256(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi8(static_cast<char>(0xF0))),
            _mm256_shuffle_epi8(small_low, magnitude), is_small);
        const __m256i high = _mm256_or_si256(
            sign,
            _mm256_blendv_epi8(_mm256_add_epi8(_mm256_and_si256(_mm256_srli_epi16(magnitude, 4), _mm256_set1_epi8(7)),
                                               _mm256_set1_epi8(0x3C)),
                               _mm256_shuffle_epi8(small_high, magnitude), is_small));
        const __m256i first_half = _mm256_add_epi16(_mm256_unpacklo_epi8(low, high),
                                                    _mm256_andnot_si256(_mm256_unpacklo_epi8(zero, zero), step));
        const __m256i second_half = _mm256_add_epi16(_mm256_unpackhi_epi8(low, high),
                                                     _mm256_andnot_si256(_mm256_unpackhi_epi8(zero, zero), step));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at), first_half);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at + kPiece / 2), second_half);
      }
    }
    if (at < end) scale_elements(weights + at, scale, end - at, out + at);
  }
  // NaN codes are rare enough to redo the row.
  if (_mm256_movemask_epi8(nan) != 0) dequantise_rest(table, weights, scales, 0, out);
}

__attribute__((target("avx2"))) void tile_avx2(const TableView& table, const Tile& tile) {
  for (std::size_t i = 0; i < tile.rows; ++i) {
    if (tile.weights[i] == nullptr) {
      zero_row(table, tile.out[i]);
    } else {
      dequantise_avx2(table, tile.weights[i], tile.scales[i], tile.out[i]);
    }
  }
}

#define EB_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")))

// 256 elements with eight plain scales; false where one is a NaN, whose sign must go. A magnitude's low and high byte
// come from 128-entry tables, 64 elements at a time. Few instructions matter more than their kind here: a prefetch
// whose page walk is under way keeps the reorder buffer from retiring, and only what is in that buffer overlaps with
// it.
EB_AVX512 inline bool dequantise_256(const std::uint8_t* weights, __m128i scales, Bf16* out) {
  struct alignas(64) Tables {
    std::array<std::uint8_t, 128> low{};
    std::array<std::uint8_t, 128> high{};
  };
  static constexpr Tables kTables = [] {
    Tables tables;
    for (unsigned code = 0; code < 128; ++code) {
      tables.low[code] = static_cast<std::uint8_t>(kCodes[code]);
      tables.high[code] = static_cast<std::uint8_t>(kCodes[code] >> 8);
    }
    return tables;
  }();
  // So that the in-lane unpacks below deliver elements in order.
  const __m512i interleave = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i low_0 = _mm512_load_si512(kTables.low.data());
  const __m512i low_1 = _mm512_load_si512(kTables.low.data() + 64);
  const __m512i high_0 = _mm512_load_si512(kTables.high.data());
  const __m512i high_1 = _mm512_load_si512(kTables.high.data() + 64);
  const __m512i magnitude_bits = _mm512_set1_epi8(0x7F);
  const __m512i sign_bit = _mm512_set1_epi8(static_cast<char>(0x80));
  alignas(16) std::array<std::uint16_t, 8> steps;
  _mm_store_si128(reinterpret_cast<__m128i*>(steps.data()),
                  _mm_slli_epi16(_mm_sub_epi16(_mm_cvtepu8_epi16(scales), _mm_set1_epi16(127)), 7));
  __mmask64 all_numbers = ~__mmask64{0};
#pragma GCC unroll 4
  for (std::size_t part = 0; part < 4; ++part) {
    const __m512i codes = _mm512_loadu_si512(weights + 64 * part);
    const __mmask64 not_nan =
        _mm512_test_epi8_mask(_mm512_sub_epi8(codes, _mm512_set1_epi8(-1)), magnitude_bits);  // code + 1 ends in 0x80
    const __mmask64 has_exponent = _mm512_mask_test_epi8_mask(not_nan, codes, magnitude_bits);
    all_numbers &= not_nan;
    const __m512i index = _mm512_permutexvar_epi64(interleave, codes);
    const __m512i low = _mm512_permutex2var_epi8(low_0, index, low_1);
    const __m512i high = _mm512_ternarylogic_epi64(_mm512_permutex2var_epi8(high_0, index, high_1), index, sign_bit,
                                                   0xF8);  // first | (second & third)
    const __m512i first = _mm512_unpacklo_epi8(low, high);
    const __m512i second = _mm512_unpackhi_epi8(low, high);
    const __m512i first_step = _mm512_set1_epi16(static_cast<std::int16_t>(steps[2 * part]));
    const __m512i second_step = _mm512_set1_epi16(static_cast<std::int16_t>(steps[2 * part + 1]));
    _mm512_storeu_si512(out + 64 * part,
                        _mm512_mask_add_epi16(first, static_cast<__mmask32>(has_exponent), first, first_step));
    _mm512_storeu_si512(out + 64 * part + 32,
                        _mm512_mask_add_epi16(second, static_cast<__mmask32>(has_exponent >> 32), second, second_step));
  }
  return all_numbers == ~__mmask64{0};
}

// Blocks of 32, rows a multiple of 256 long.
EB_AVX512 void tile_avx512(const TableView& table, const Tile& tile) {
  for (std::size_t i = 0; i < tile.rows; ++i) {
    const std::uint8_t* weights = tile.weights[i];
    const std::uint8_t* scales = tile.scales[i];
    Bf16* out = tile.out[i];
    if (weights == nullptr) {
      zero_row(table, out);
      continue;
    }
    for (std::int64_t first = 0; first < table.dim; first += 256) {
      const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + first / kPiece));
      const __m128i clamped = _mm_min_epu8(_mm_max_epu8(eight, _mm_set1_epi8(kFirstPlainScale)),
                                           _mm_set1_epi8(static_cast<char>(kLastPlainScale)));
      const bool plain = static_cast<std::uint8_t>(_mm_cmpeq_epi8_mask(clamped, eight)) == 0xFF;
      if (!plain || !dequantise_256(weights + first, eight, out + first)) {
        dequantise_rest(table, weights, scales, first, out);
        break;
      }
    }
  }
}

#endif  // __x86_64__

TileKernel tile_kernel(const TableView& table, CpuVariant variant) {
  if (table.format == RowFormat::bf16) return copy_tile;
#if defined(__x86_64__)
  if (variant == CpuVariant::avx512 && table.block == kPiece && table.dim % 256 == 0) return tile_avx512;
  if (variant != CpuVariant::baseline && table.block % kPiece == 0) return tile_avx2;
#else
  static_cast<void>(variant);
#endif
  return tile_baseline;
}

// Ids to addresses, appended. A row that is not there has no address.
void resolve(const LookupArgs& args, std::int64_t tile, Tile& to) noexcept {
  const TableView& table = args.table;
  const std::int64_t first = tile * kTileRows;
  const std::int64_t last = std::min(first + kTileRows, args.rows());
  const auto heads = static_cast<std::uint32_t>(args.heads);
  std::int64_t token = first / heads;
  auto head = static_cast<std::uint32_t>(first - token * heads);
  for (std::int64_t at = first; at < last; ++at) {
    const std::size_t i = to.rows++;
    std::int64_t row = at;
    if (args.order != nullptr) {
      row = args.order[row];
      token = static_cast<std::uint32_t>(row) / heads;
      head = static_cast<std::uint32_t>(row) % heads;
    }
    to.out[i] = args.staging + row * table.dim;
    to.weights[i] = nullptr;
    if (head < static_cast<std::uint32_t>(args.columns)) {
      const std::int64_t id = args.ids[token * args.id_token_stride + args.id_offset + head];
      const std::int64_t local = id - table.first_row;
      if (id >= 0 && local >= 0 && local < table.rows) {
        to.weights[i] = reinterpret_cast<const std::uint8_t*>(table.weights) + local * table.weight_stride;
        to.scales[i] = reinterpret_cast<const std::uint8_t*>(table.scales) + local * table.scale_stride;
      }
    }
    if (++head == heads) {
      head = 0;
      ++token;
    }
  }
}

// Every line of the tile's rows. Always inlined: GCC takes a function that only prefetches for one without effect and
// drops its calls.
[[gnu::always_inline]] inline void prefetch(const Tile& tile, std::size_t weight_bytes,
                                            std::size_t scale_bytes) noexcept {
  for (std::size_t i = 0; i < tile.rows; ++i) {
    const std::uint8_t* weights = tile.weights[i];
    if (weights == nullptr) continue;
    for (std::size_t at = 0; at < weight_bytes; at += kLineBytes) __builtin_prefetch(weights + at, 0, 3);
    if (scale_bytes > 0) __builtin_prefetch(tile.scales[i], 0, 3);
  }
}

struct SortKey {
  std::uint32_t key = 0;
  std::int32_t row = 0;
};

}  // namespace

void lookup_program(const LookupArgs& args, std::int64_t program, std::int64_t grid, CpuVariant variant) {
  const TableView& table = args.table;
  if (args.rows() == 0) return;
  const TileKernel kernel = tile_kernel(table, variant);
  const bool quantised = table.format == RowFormat::e4m3_ue8m0;
  const std::size_t weight_bytes = static_cast<std::size_t>(table.dim) * (quantised ? 1 : sizeof(Bf16));
  const std::size_t scale_bytes = quantised ? static_cast<std::size_t>((table.dim + table.block - 1) / table.block) : 0;

  std::array<Tile, 2> groups;
  const std::int64_t end = args.tiles();
  std::int64_t next = program;
  const auto fetch = [&](Tile& group) {
    group.rows = 0;
    for (std::int64_t t = 0; t < kGroupTiles && next < end; ++t, next += grid) resolve(args, next, group);
    prefetch(group, weight_bytes, scale_bytes);
  };
  fetch(groups[0]);
  for (std::size_t now = 0; groups[now].rows > 0; now ^= 1) {
    fetch(groups[now ^ 1]);
    kernel(table, groups[now]);
  }
}

void lookup_program(const LookupArgs& args, std::int64_t program, std::int64_t grid) {
  lookup_program(args, program, grid, best_variant());
}

// Stable LSD radix sort, 11 bits a pass, over as many bits as the shard's row numbers have. Scratch stays with the
// thread: a step's sort must not pay page faults.
void sort_rows(const LookupArgs& args, std::int32_t* order) {
  constexpr unsigned kDigitBits = 11;
  constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
  thread_local std::vector<SortKey> keys;
  thread_local std::vector<SortKey> other;
  const std::int64_t rows = args.rows();
  keys.resize(static_cast<std::size_t>(rows));
  other.resize(static_cast<std::size_t>(rows));

  const auto none = static_cast<std::uint32_t>(args.table.rows);  // above every row of the shard
  std::size_t at = 0;
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    const std::int32_t* ids = args.ids + token * args.id_token_stride + args.id_offset;
    for (std::int32_t head = 0; head < args.heads; ++head, ++at) {
      std::uint32_t key = none;
      if (head < args.columns && ids[head] >= 0) {
        const std::int64_t local = ids[head] - args.table.first_row;
        if (local >= 0 && local < args.table.rows) key = static_cast<std::uint32_t>(local);
      }
      keys[at] = {key, static_cast<std::int32_t>(at)};
    }
  }

  const auto bits = static_cast<unsigned>(std::bit_width(none));
  for (unsigned shift = 0; shift < bits; shift += kDigitBits) {
    std::array<std::uint32_t, kDigits> start{};
    for (const SortKey& key : keys) ++start[(key.key >> shift) % kDigits];
    std::uint32_t sum = 0;
    for (std::uint32_t& count : start) sum += std::exchange(count, sum);
    for (const SortKey& key : keys) other[start[(key.key >> shift) % kDigits]++] = key;
    keys.swap(other);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) order[i] = keys[i].row;
}

}  // namespace eb::kernels
