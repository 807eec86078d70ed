#include "kernels/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace eb::kernels {
namespace {

// The formula of select.h, byte by byte.
std::vector<std::byte> reference(const SelectArgs& args) {
  std::vector<std::byte> dst(static_cast<std::size_t>(args.tokens * args.dst_row_bytes), std::byte{0});
  for (std::int64_t token = 0; token < args.valid_tokens; ++token) {
    for (std::int64_t at = 0; at < args.dst_row_bytes; ++at) {
      const std::int64_t source = at / args.piece_bytes;
      if (source >= args.sources) continue;
      dst[static_cast<std::size_t>(token * args.dst_row_bytes + at)] =
          args.src[source * args.source_stride + (args.first_token + token) * args.token_stride +
                   at % args.piece_bytes];
    }
  }
  return dst;
}

TEST(Select, RandomShapesMatchTheFormula) {
  std::mt19937_64 random(1);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 400; ++round) {
    SelectArgs args;
    args.sources = static_cast<int>(1 + below(4));
    args.piece_bytes = 2 * (1 + below(40));
    args.token_stride = args.piece_bytes + 2 * below(2) * below(10);
    args.first_token = below(5);
    args.tokens = below(12);
    args.valid_tokens = args.tokens == 0 ? 0 : below(args.tokens + 1);
    args.source_stride = (args.first_token + args.tokens) * args.token_stride + 2 * below(9);
    // The whole row, a cut one (padded heads), or one wider than its pieces.
    const std::int64_t whole = args.sources * args.piece_bytes;
    args.dst_row_bytes = round % 3 == 0 ? whole : round % 3 == 1 ? 2 + 2 * below(whole / 2) : whole + 6;
    std::vector<std::byte> src(static_cast<std::size_t>(args.sources * args.source_stride + 64));
    for (std::byte& byte : src) byte = static_cast<std::byte>(1 + below(255));
    args.src = src.data();
    const std::vector<std::byte> expected = reference(args);
    constexpr std::size_t kGuard = 32;
    std::vector<std::byte> dst(expected.size() + 2 * kGuard, std::byte{0xEE});
    args.dst = dst.data() + kGuard;
    select_rows(args);
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), args.dst)) << "round " << round;
    for (std::size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(dst[i], std::byte{0xEE});
      ASSERT_EQ(dst[kGuard + expected.size() + i], std::byte{0xEE});
    }
  }
}

// Two TP ranks' heads side by side: [rank][token][heads of a rank] -> [token][heads].
TEST(Select, PutsHeadsOfRanksSideBySide) {
  const std::vector<std::uint16_t> gathered = {10, 11, 20, 21, /* rank 1: */ 12, 13, 22, 23};
  std::vector<std::uint16_t> rows(6);
  SelectArgs args{.src = reinterpret_cast<const std::byte*>(gathered.data()),
                  .dst = reinterpret_cast<std::byte*>(rows.data()),
                  .sources = 2,
                  .source_stride = 8,
                  .token_stride = 4,
                  .piece_bytes = 4,
                  .valid_tokens = 2,
                  .tokens = 2,
                  .dst_row_bytes = 6};  // three heads, the fourth is padding
  select_rows(args);
  EXPECT_EQ(rows, (std::vector<std::uint16_t>{10, 11, 12, 20, 21, 22}));
}

}  // namespace
}  // namespace eb::kernels
