// Bits of a row and their value; synthetic content that can be recomputed for any row without its table.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "harness/base/bf16.h"
#include "harness/engram/geometry.h"

namespace eb::engram {

[[nodiscard]] std::uint64_t splitmix64(std::uint64_t x) noexcept;
[[nodiscard]] std::uint64_t fnv1a64(const std::string& text) noexcept;

[[nodiscard]] float e4m3_to_float(std::uint8_t bits) noexcept;   // OCP E4M3 (finite: no infinities; S.1111.111 = NaN)
[[nodiscard]] float ue8m0_to_float(std::uint8_t bits) noexcept;  // float32 with bits `byte << 23`: 0 -> 0.0, 255 -> inf

// Writes row `row` (0-based in the whole table of backbone layer `layer`): weights[row_weight_bytes],
// scales[row_scale_bytes].
void synthetic_row(const Geometry& geometry, std::uint64_t seed, int layer, std::int64_t row,
                   std::span<std::uint8_t> weights, std::span<std::uint8_t> scales) noexcept;

// Value of a stored row: element = E4M3 value x scale, rounded once to BF16 (bf16 rows: as stored). A NaN (a NaN code,
// or zero times the infinite scale) is kBf16Nan, whatever its sign. out[dim].
void row_value(const Geometry& geometry, std::span<const std::uint8_t> weights, std::span<const std::uint8_t> scales,
               std::span<Bf16> out) noexcept;

// Elements [first, first + out.size()) of the synthetic weight tensor `name`, named as in the checkpoint.
void synthetic_weights(const std::string& name, std::uint64_t seed, std::int64_t fan_in, std::int64_t first,
                       std::span<Bf16> out) noexcept;

}  // namespace eb::engram
