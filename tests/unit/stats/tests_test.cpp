#include "harness/stats/tests.h"

#include <gtest/gtest.h>

#include <vector>

#include "harness/base/error.h"
#include "harness/stats/random.h"

namespace eb::stats {
namespace {

TEST(MannWhitney, SmallSamplesAreCounted) {
  // Of C(6, 3) = 20 ways one puts all of a below b: p = 2/20.
  const MannWhitney test = mann_whitney(std::vector<double>{1, 2, 3}, std::vector<double>{4, 5, 6});
  EXPECT_TRUE(test.exact);
  EXPECT_DOUBLE_EQ(test.u, 0);
  EXPECT_DOUBLE_EQ(test.p, 0.1);
  EXPECT_DOUBLE_EQ(mann_whitney(std::vector<double>{4, 5, 6}, std::vector<double>{1, 2, 3}).p, 0.1);
  EXPECT_DOUBLE_EQ(mann_whitney(std::vector<double>{1, 4}, std::vector<double>{2, 3}).p, 1);
}

TEST(MannWhitney, TiesGoToTheApproximation) {
  const MannWhitney test = mann_whitney(std::vector<double>{1, 2, 2}, std::vector<double>{2, 3, 4});
  EXPECT_FALSE(test.exact);
  EXPECT_DOUBLE_EQ(test.u, 1);  // of nine comparisons two are ties of a half
  EXPECT_DOUBLE_EQ(mann_whitney(std::vector<double>{2, 2}, std::vector<double>{2, 2}).p, 1);
  EXPECT_THROW(static_cast<void>(mann_whitney(std::vector<double>{}, std::vector<double>{2})), Error);
}

TEST(Holm, StepsDown) {
  const std::vector<double> adjusted = holm(std::vector<double>{0.04, 0.01, 0.03, 0.005});
  EXPECT_DOUBLE_EQ(adjusted[3], 0.02);
  EXPECT_DOUBLE_EQ(adjusted[1], 0.03);
  EXPECT_DOUBLE_EQ(adjusted[2], 0.06);
  EXPECT_DOUBLE_EQ(adjusted[0], 0.06) << "never below the one before it";
  EXPECT_DOUBLE_EQ(holm(std::vector<double>{0.9, 0.8}).front(), 1);
}

TEST(TwoClusters, FindsTwoAndNotOne) {
  Random random(1);
  std::vector<double> two;
  for (int i = 0; i < 5; ++i) two.push_back(1.0 + 0.01 * random.normal());
  for (int i = 0; i < 5; ++i) two.push_back(1.2 + 0.01 * random.normal());
  const auto found = two_clusters(two);
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->found());
  EXPECT_EQ(found->lower, 5U);
  EXPECT_NEAR(found->upper_mean, 1.2, 0.02);
  EXPECT_GT(found->explained, 0.95);
}

TEST(TwoClusters, OneNormalGroupIsRarelyCalledTwo) {
  int called = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed * 977 + 5);
    std::vector<double> one;
    for (int i = 0; i < 12; ++i) one.push_back(random.normal());
    called += two_clusters(one)->found() ? 1 : 0;
  }
  EXPECT_LE(called, 7) << "1 % of 200 are 2; above 7 has a chance of 0.1 %";
}

TEST(TwoClusters, EqualOrFewValues) {
  EXPECT_FALSE(two_clusters(std::vector<double>{1, 2, 3, 4, 5}).has_value());
  EXPECT_FALSE(two_clusters(std::vector<double>(8, 1.0))->found());
}

}  // namespace
}  // namespace eb::stats
