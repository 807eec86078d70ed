#include "harness/stats/tail.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace eb::stats {
namespace {

std::vector<double> ascending(std::size_t n) {
  std::vector<double> values(n);
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

TEST(Tail, MinimumSamples) {
  EXPECT_EQ(minimum_samples(0.95), 72);
  EXPECT_EQ(minimum_samples(0.99), 368);
  EXPECT_EQ(minimum_samples(0.999), 3688);
  EXPECT_EQ(minimum_samples(0.5), 6);
}

TEST(Tail, BinomialClosedForms) {
  EXPECT_NEAR(binomial_cdf(0, 10, 0.5), 1.0 / 1024, 1e-15);
  EXPECT_NEAR(binomial_cdf(9, 10, 0.5), 1 - 1.0 / 1024, 1e-15);
  EXPECT_NEAR(binomial_cdf(2, 4, 0.5), 11.0 / 16, 1e-14);
  EXPECT_DOUBLE_EQ(binomial_cdf(-1, 4, 0.5), 0);
  EXPECT_DOUBLE_EQ(binomial_cdf(4, 4, 0.5), 1);
  EXPECT_NEAR(binomial_cdf(71, 72, 0.95), 1 - std::pow(0.95, 72), 1e-13);
}

// n = 10, p = 0.5: P(Bin <= 1) = 11/1024 <= .025 < P(Bin <= 2) = 56/1024, so ranks 2 and 9: the textbook's interval.
TEST(Tail, MedianOfTen) {
  const auto values = ascending(10);
  const auto interval = quantile_interval(values, 0.5);
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->low_rank, 2);
  EXPECT_EQ(interval->high_rank, 9);
  EXPECT_DOUBLE_EQ(interval->value, 5.5);
}

TEST(Tail, BoundaryOfP95) {
  EXPECT_FALSE(quantile_interval(ascending(71), 0.95));
  const auto interval = quantile_interval(ascending(72), 0.95);
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->high_rank, 72);  // just enough samples: the maximum is the upper end
  EXPECT_LT(interval->low_rank, 69);
}

TEST(Tail, LargeSetCoversWithNarrowRanks) {
  const auto interval = quantile_interval(ascending(100000), 0.99);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(static_cast<double>(interval->low_rank), 99000 - 1.96 * 31.46, 3);
  EXPECT_NEAR(static_cast<double>(interval->high_rank), 99000 + 1.96 * 31.46, 3);
}

}  // namespace
}  // namespace eb::stats
