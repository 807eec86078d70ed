#include "harness/engram/content.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace eb::engram {
namespace {

TEST(Content, PublishedValuesOfTheMixers) {
  EXPECT_EQ(splitmix64(0), 0xE220A8397B1DCDAFULL);  // first output of the generator seeded with 0
  EXPECT_EQ(fnv1a64(""), 0xCBF29CE484222325ULL);
  EXPECT_EQ(fnv1a64("a"), 0xAF63DC4C8601EC8CULL);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171F73967E8ULL);
}

TEST(Content, E4m3) {
  EXPECT_EQ(e4m3_to_float(0x00), 0.0F);
  EXPECT_TRUE(std::signbit(e4m3_to_float(0x80)));
  EXPECT_EQ(e4m3_to_float(0x01), std::ldexp(1.0F, -9));  // smallest subnormal
  EXPECT_EQ(e4m3_to_float(0x07), std::ldexp(7.0F, -9));  // largest subnormal
  EXPECT_EQ(e4m3_to_float(0x08), std::ldexp(1.0F, -6));  // smallest normal
  EXPECT_EQ(e4m3_to_float(0x38), 1.0F);
  EXPECT_EQ(e4m3_to_float(0xC5), -3.25F);
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0F);  // largest: no infinities
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7F)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xFF)));
}

TEST(Content, Ue8m0) {
  EXPECT_EQ(ue8m0_to_float(127), 1.0F);
  EXPECT_EQ(ue8m0_to_float(120), std::ldexp(1.0F, -7));
  EXPECT_EQ(ue8m0_to_float(0), 0.0F);
  EXPECT_TRUE(std::isinf(ue8m0_to_float(255)));
}

TEST(Content, RowValueUsesTheScaleOfItsBlock) {
  const Geometry geometry = make_geometry(preset("tiny"), 1.0);
  std::vector<std::uint8_t> weights(64, 0x38);  // 1.0
  weights[33] = 0x7E;
  const std::vector<std::uint8_t> scales = {128, 120};
  std::vector<Bf16> out(64);
  row_value(geometry, weights, scales, out);
  EXPECT_EQ(to_float(out[0]), 2.0F);
  EXPECT_EQ(to_float(out[31]), 2.0F);
  EXPECT_EQ(to_float(out[32]), std::ldexp(1.0F, -7));
  EXPECT_EQ(to_float(out[33]), 3.5F);
}

TEST(Content, EveryNanOfARowIsTheSame) {
  const Geometry geometry = make_geometry(preset("tiny"), 1.0);
  std::vector<std::uint8_t> weights(64, 0x00);
  weights[0] = 0x7F;
  weights[1] = 0xFF;
  weights[32] = 0x38;
  std::vector<Bf16> out(64);
  row_value(geometry, weights, std::vector<std::uint8_t>{127, 255}, out);
  EXPECT_EQ(out[0], kBf16Nan);
  EXPECT_EQ(out[1], kBf16Nan);
  EXPECT_EQ(out[2].bits, 0);
  EXPECT_EQ(out[32].bits, 0x7F80) << "1 x inf";
  EXPECT_EQ(out[33], kBf16Nan) << "0 x inf";
}

TEST(Content, SyntheticRowsHaveNoNanAndTameScales) {
  const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 0.001);
  std::vector<std::uint8_t> weights(256);
  std::vector<std::uint8_t> scales(8);
  std::set<std::uint8_t> seen;
  for (std::int64_t row = 0; row < 500; ++row) {
    synthetic_row(geometry, 1, 1, row, weights, scales);
    for (const auto weight : weights) ASSERT_NE(weight & 0x7F, 0x7F);
    for (const auto scale : scales) {
      ASSERT_GE(scale, 120);
      ASSERT_LE(scale, 133);
      seen.insert(scale);
    }
  }
  EXPECT_EQ(seen.size(), 14U);
}

// First bytes of a row from the definition, word by word.
TEST(Content, SyntheticRowByTheFormula) {
  const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 1.0);
  std::vector<std::uint8_t> weights(256);
  std::vector<std::uint8_t> scales(8);
  synthetic_row(geometry, 42, 14, 383'999'999, weights, scales);
  const std::uint64_t base = splitmix64(42) + 14 * 0x9E3779B97F4A7C15ULL + 383'999'999ULL * 33;
  for (std::size_t w = 0; w < 32; ++w) {
    for (std::size_t b = 0; b < 8; ++b) {
      auto expected = static_cast<std::uint8_t>(splitmix64(base + w) >> (8 * b));
      if ((expected & 0x7F) == 0x7F) expected ^= 1;
      EXPECT_EQ(weights[w * 8 + b], expected);
    }
  }
  for (std::size_t b = 0; b < 8; ++b) EXPECT_EQ(scales[b], 120 + ((splitmix64(base + 32) >> (8 * b)) & 0xFF) % 14);
}

TEST(Content, Bf16RowsReadBackAsStored) {
  const Geometry geometry = make_geometry(preset("deepep-default"), 1.0);
  std::vector<std::uint8_t> weights(256);
  std::vector<Bf16> out(128);
  synthetic_row(geometry, 3, 0, 77, weights, {});
  row_value(geometry, weights, {}, out);
  for (std::size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(out[i].bits, weights[2 * i] | (weights[2 * i + 1] << 8));
    const int exponent = (out[i].bits >> 7) & 0xFF;
    EXPECT_GE(exponent, 120);
    EXPECT_LE(exponent, 133);
  }
}

TEST(Content, SyntheticWeightsAreRandomAccess) {
  std::vector<Bf16> all(1000);
  synthetic_weights("layers.1.engram.wkv.weight", 9, 6144, 0, all);
  std::vector<Bf16> part(100);
  synthetic_weights("layers.1.engram.wkv.weight", 9, 6144, 700, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 700));
  const float limit = 1.0F / std::sqrt(6144.0F);
  float sum = 0;
  for (const Bf16 value : all) {
    EXPECT_LE(std::fabs(to_float(value)), limit * 1.004F);
    sum += to_float(value);
  }
  EXPECT_LT(std::fabs(sum / 1000.0F), limit * 0.1F);
  std::vector<Bf16> other(1000);
  synthetic_weights("layers.14.engram.wkv.weight", 9, 6144, 0, other);
  EXPECT_NE(all, other);
}

}  // namespace
}  // namespace eb::engram
