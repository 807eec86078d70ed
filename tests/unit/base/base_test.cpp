#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "harness/base/bf16.h"
#include "harness/base/sha256.h"

namespace eb {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808000U)).bits, 0x3F80);  // tie, even below
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F818000U)).bits, 0x3F82);  // tie, even above
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3F808001U)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7F7FFFFFU)).bits, 0x7F80);  // rounds up to infinity
}

TEST(Sha256, KnownSums) {
  const std::string abc = "abc";  // FIPS 180-2, example B.1
  EXPECT_EQ(sha256_hex(std::as_bytes(std::span(abc.data(), abc.size()))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace eb
