#include "harness/engram/content.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace eb::engram {

namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

constexpr float decode_e4m3(std::uint8_t bits) noexcept {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  float magnitude = 0;
  if (exponent == 15 && mantissa == 7) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = static_cast<float>(mantissa) * 0x1p-9F;
  } else {  // 1.mmm x 2^(exponent - 7): a float32 has a bias of 127
    magnitude = std::bit_cast<float>((static_cast<std::uint32_t>(exponent + 120) << 23) |
                                     (static_cast<std::uint32_t>(mantissa) << 20));
  }
  const auto sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

constexpr std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> values{};
  for (unsigned bits = 0; bits < 256; ++bits) values[bits] = decode_e4m3(static_cast<std::uint8_t>(bits));
  return values;
}();

constexpr std::uint8_t byte_of(std::uint64_t word, std::size_t place) noexcept {
  return static_cast<std::uint8_t>(word >> (8 * place));
}

// Exponents 120..133 keep every value and every product of a lookup far from overflow and from subnormals.
constexpr std::uint32_t tame_exponent(std::uint32_t field) noexcept { return 120 + field % 14; }

}  // namespace

std::uint64_t splitmix64(std::uint64_t x) noexcept {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

std::uint64_t fnv1a64(const std::string& text) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001B3ULL;
  return hash;
}

float e4m3_to_float(std::uint8_t bits) noexcept { return kE4m3[bits]; }

float ue8m0_to_float(std::uint8_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 23);
}

void synthetic_row(const Geometry& geometry, std::uint64_t seed, int layer, std::int64_t row,
                   std::span<std::uint8_t> weights, std::span<std::uint8_t> scales) noexcept {
  const auto weight_words = static_cast<std::uint64_t>(geometry.row_weight_bytes()) / 8;
  const auto scale_bytes = static_cast<std::uint64_t>(geometry.row_scale_bytes());
  const std::uint64_t stride = weight_words + (scale_bytes + 7) / 8;
  const std::uint64_t base =
      splitmix64(seed) + static_cast<std::uint64_t>(layer) * kGolden + static_cast<std::uint64_t>(row) * stride;
  const bool bf16 = geometry.model.format == RowFormat::bf16;
  for (std::uint64_t w = 0; w < weight_words; ++w) {
    std::uint64_t word = splitmix64(base + w);
    if (bf16) {
      for (int piece = 0; piece < 64; piece += 16) {
        const auto field = static_cast<std::uint32_t>(word >> (piece + 7)) & 0xFFU;
        word &= ~(std::uint64_t{0xFF} << (piece + 7));
        word |= std::uint64_t{tame_exponent(field)} << (piece + 7);
      }
    }
    for (std::size_t b = 0; b < 8; ++b) {
      std::uint8_t byte = byte_of(word, b);
      if (!bf16 && (byte & 0x7FU) == 0x7FU) byte ^= 1U;  // no NaN
      weights[w * 8 + b] = byte;
    }
  }
  std::uint64_t word = 0;
  for (std::uint64_t b = 0; b < scale_bytes; ++b) {
    if (b % 8 == 0) word = splitmix64(base + weight_words + b / 8);
    scales[b] = static_cast<std::uint8_t>(tame_exponent(byte_of(word, b % 8)));
  }
}

void row_value(const Geometry& geometry, std::span<const std::uint8_t> weights, std::span<const std::uint8_t> scales,
               std::span<Bf16> out) noexcept {
  const auto dim = static_cast<std::size_t>(geometry.model.dim);
  if (geometry.model.format == RowFormat::bf16) {
    for (std::size_t i = 0; i < dim; ++i) {
      out[i].bits = static_cast<std::uint16_t>(weights[2 * i] | (weights[2 * i + 1] << 8));
    }
    return;
  }
  const auto block = static_cast<std::size_t>(geometry.model.block);
  for (std::size_t i = 0; i < dim; ++i) {
    const float product = kE4m3[weights[i]] * ue8m0_to_float(scales[i / block]);
    out[i] = std::isnan(product) ? kBf16Nan : to_bf16(product);
  }
}

void synthetic_weights(const std::string& name, std::uint64_t seed, std::int64_t fan_in, std::int64_t first,
                       std::span<Bf16> out) noexcept {
  const std::uint64_t base = (splitmix64(seed) ^ fnv1a64(name)) + static_cast<std::uint64_t>(first);
  const double width = 2.0 / std::sqrt(static_cast<double>(fan_in));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double unit = static_cast<double>(splitmix64(base + i) >> 40) * 0x1p-24;  // [0, 1), 24 bits
    out[i] = to_bf16(static_cast<float>((unit - 0.5) * width));
  }
}

}  // namespace eb::engram
