// BF16 as storage: arithmetic is done in float and rounded once.
#pragma once

#include <bit>
#include <cstdint>

namespace eb {

struct Bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};

// The one NaN that dequantised rows hold: sign and payload of a product's NaN differ between processors, and rows are
// compared bit for bit.
inline constexpr Bf16 kBf16Nan{0x7FC0};

[[nodiscard]] constexpr float to_float(Bf16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN (quieted), infinities stay.
[[nodiscard]] constexpr Bf16 to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

}  // namespace eb
