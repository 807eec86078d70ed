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

// Rows between the prefetch of a row and its use: enough misses in flight to fill the core's line buffers (five lines
// a row), few enough that a row is not evicted from L1 before its turn. Measured: docs/performance.md.
constexpr std::int64_t kPrefetchRows = 12;
constexpr std::int64_t kRing = 16;  // a power of two above kPrefetchRows
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

using RowKernel = void (*)(const TableView& table, const std::uint8_t* weights, const std::uint8_t* scales, Bf16* out);

void copy_row(const TableView& table, const std::uint8_t* weights, const std::uint8_t*, Bf16* out) {
  std::memcpy(out, weights, static_cast<std::size_t>(table.dim) * sizeof(Bf16));
}

void dequantise_baseline(const TableView& table, const std::uint8_t* weights, const std::uint8_t* scales, Bf16* out) {
  for (std::int64_t first = 0; first < table.dim; first += table.block) {
    const std::int64_t count = std::min<std::int64_t>(table.block, table.dim - first);
    scale_elements(weights + first, *scales++, count, out + first);
  }
}

#if defined(__x86_64__)

// Both SIMD kernels take 32 elements at a time, all of one block: block is a multiple of 32.
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
  std::int64_t first = 0;
  for (; first < table.dim; first += table.block) {
    const unsigned scale = *scales++;
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
  if (_mm256_movemask_epi8(nan) != 0) dequantise_baseline(table, weights, scales - (first / table.block), out);
}

// Words throughout; magnitudes below 8 (denormals) come from an 8-entry table.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void dequantise_avx512(const TableView& table,
                                                                                     const std::uint8_t* weights,
                                                                                     const std::uint8_t* scales,
                                                                                     Bf16* out) {
  alignas(64) static constexpr std::array<std::uint16_t, 32> kDenormal = [] {
    std::array<std::uint16_t, 32> words{};
    for (unsigned code = 0; code < 8; ++code) words[code] = static_cast<std::uint16_t>(kCodes[code] - (120U << 7));
    return words;
  }();
  const __m512i denormal = _mm512_load_si512(kDenormal.data());
  const __m512i nan = _mm512_set1_epi16(static_cast<std::int16_t>(kBf16Nan.bits));
  for (std::int64_t first = 0; first < table.dim; first += table.block) {
    const unsigned scale = *scales++;
    const std::int64_t end = std::min<std::int64_t>(first + table.block, table.dim);
    std::int64_t at = first;
    if (is_plain(scale)) {
      const __m512i step =
          _mm512_set1_epi16(static_cast<std::int16_t>(exponent_step(scale) + (120U << 7)));  // with E4M3's bias
      for (; at + kPiece <= end; at += kPiece) {
        const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + at)));
        const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7F));
        const __mmask32 is_denormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
        const __mmask32 is_nonzero = _mm512_test_epi16_mask(magnitude, magnitude);
        const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7F));
        __m512i bits = _mm512_mask_permutexvar_epi16(_mm512_slli_epi16(magnitude, 4), is_denormal, magnitude, denormal);
        bits = _mm512_maskz_add_epi16(is_nonzero, bits, step);
        // bits | (codes << 8 & 0x8000)
        bits = _mm512_ternarylogic_epi64(bits, _mm512_slli_epi16(codes, 8),
                                         _mm512_set1_epi16(static_cast<std::int16_t>(0x8000)), 0xF8);
        _mm512_storeu_si512(out + at, _mm512_mask_mov_epi16(bits, is_nan, nan));
      }
    }
    if (at < end) scale_elements(weights + at, scale, end - at, out + at);
  }
}

#endif  // __x86_64__

RowKernel row_kernel(const TableView& table, CpuVariant variant) {
  if (table.format == RowFormat::bf16) return copy_row;
#if defined(__x86_64__)
  if (table.block % kPiece == 0) {
    if (variant == CpuVariant::avx512) return dequantise_avx512;
    if (variant == CpuVariant::avx2) return dequantise_avx2;
  }
#else
  static_cast<void>(variant);
#endif
  return dequantise_baseline;
}

// One row to do. No weights: a zero row.
struct Row {
  const std::uint8_t* weights = nullptr;
  const std::uint8_t* scales = nullptr;
  Bf16* out = nullptr;
};

// The rows of one program, in the order it visits them.
class Walk {
 public:
  Walk(const LookupArgs& args, std::int64_t program, std::int64_t grid) : args_(args), grid_(grid), tile_(program) {
    start_tile();
  }
  [[nodiscard]] bool done() const noexcept { return at_ == end_; }

  // The next row; not done() before.
  Row next() noexcept {
    std::int64_t row = at_;
    if (args_.order == nullptr) {
      if (head_ == args_.heads) {
        head_ = 0;
        ++token_;
      }
    } else {
      row = args_.order[at_];
      locate(row);
    }
    const Row found = resolve(row);
    ++head_;
    if (++at_ == end_) {
      tile_ += grid_;
      start_tile();
    }
    return found;
  }

 private:
  void start_tile() noexcept {
    at_ = std::min(tile_ * kTileRows, args_.rows());
    end_ = std::min(at_ + kTileRows, args_.rows());
    locate(at_);
  }
  void locate(std::int64_t row) noexcept {
    if (row <= UINT32_MAX) {  // a 32-bit division costs a third of a 64-bit one
      token_ = static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(args_.heads);
    } else {
      token_ = row / args_.heads;
    }
    head_ = static_cast<std::int32_t>(row - token_ * args_.heads);
  }
  [[nodiscard]] Row resolve(std::int64_t row) const noexcept {
    const TableView& table = args_.table;
    Row found{.out = args_.staging + row * table.dim};
    if (head_ >= args_.columns) return found;
    const std::int64_t id = args_.ids[token_ * args_.id_token_stride + args_.id_offset + head_];
    const std::int64_t local = id - table.first_row;
    if (id < 0 || local < 0 || local >= table.rows) return found;
    found.weights = reinterpret_cast<const std::uint8_t*>(table.weights) + local * table.weight_stride;
    if (table.scales != nullptr) {
      found.scales = reinterpret_cast<const std::uint8_t*>(table.scales) + local * table.scale_stride;
    }
    return found;
  }

  const LookupArgs& args_;
  std::int64_t grid_;
  std::int64_t tile_;
  std::int64_t at_ = 0;  // position in visiting order
  std::int64_t end_ = 0;
  std::int64_t token_ = 0;
  std::int32_t head_ = 0;
};

void prefetch(const std::uint8_t* data, std::size_t bytes) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uint8_t* line = data - address % kLineBytes;
  for (; line < data + bytes; line += kLineBytes) __builtin_prefetch(line, 0, 3);
}

struct SortKey {
  std::uint32_t key = 0;
  std::int32_t row = 0;
};

}  // namespace

void lookup_program(const LookupArgs& args, std::int64_t program, std::int64_t grid, CpuVariant variant) {
  const TableView& table = args.table;
  if (args.rows() == 0) return;
  const RowKernel kernel = row_kernel(table, variant);
  const bool quantised = table.format == RowFormat::e4m3_ue8m0;
  const std::size_t weight_bytes = static_cast<std::size_t>(table.dim) * (quantised ? 1 : sizeof(Bf16));
  const std::size_t scale_bytes = quantised ? static_cast<std::size_t>((table.dim + table.block - 1) / table.block) : 0;

  std::array<Row, kRing> ring;
  std::int64_t fetched = 0;
  std::int64_t done = 0;
  Walk walk(args, program, grid);
  while (true) {
    if (!walk.done()) {
      const Row row = walk.next();
      if (row.weights != nullptr) {
        prefetch(row.weights, weight_bytes);
        if (quantised) prefetch(row.scales, scale_bytes);
      }
      ring[static_cast<std::size_t>(fetched++ % kRing)] = row;
      if (fetched - done <= kPrefetchRows) continue;
    } else if (done == fetched) {
      return;
    }
    const Row& row = ring[static_cast<std::size_t>(done++ % kRing)];
    if (row.weights != nullptr) {
      kernel(table, row.weights, row.scales, row.out);
    } else {
      std::fill_n(row.out, table.dim, Bf16{});
    }
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
