#include "harness/stats/paired.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "harness/base/error.h"
#include "harness/stats/random.h"

namespace eb::stats {
namespace {

TEST(Paired, TIntervalOfFourValues) {
  const std::vector<double> values = {1, 2, 3, 4};  // mean 2.5, s = sqrt(5/3), t(0.975, 3) = 3.182446
  const MeanInterval m = t_interval(values);
  EXPECT_EQ(m.n, 4);
  EXPECT_DOUBLE_EQ(m.mean, 2.5);
  EXPECT_NEAR(m.deviation, std::sqrt(5.0 / 3.0), 1e-14);
  EXPECT_NEAR(m.interval.high - 2.5, 3.182446 * std::sqrt(5.0 / 12.0), 1e-6);
  EXPECT_NEAR(m.interval.low + m.interval.high, 5, 1e-12);
}

TEST(Paired, TIntervalNeedsTwoFiniteValues) {
  EXPECT_THROW(static_cast<void>(t_interval(std::vector<double>{1})), Error);
  EXPECT_THROW(static_cast<void>(t_interval(std::vector<double>{1, std::nan("")})), Error);
  EXPECT_THROW(static_cast<void>(log_ratio(0, 1)), Error);
  EXPECT_THROW(static_cast<void>(log_ratio(1, -1)), Error);
}

TEST(Paired, WelchWithEqualSpreadHasPooledDegrees) {
  const std::vector<double> a = {1, 2, 3, 4, 5};
  const std::vector<double> b = {11, 12, 13, 14, 15};
  const WelchInterval w = welch_interval(a, b);
  EXPECT_NEAR(w.difference, 10, 1e-12);
  EXPECT_NEAR(w.df, 8, 1e-9);
}

TEST(Paired, SignTestCountsCoins) {
  EXPECT_DOUBLE_EQ(sign_test(std::vector<double>{1, 1, 1, 1, 1}).p, 2 * std::pow(0.5, 5));  // 0.0625: five do not do
  EXPECT_DOUBLE_EQ(sign_test(std::vector<double>{1, 1, 1, 1, 1, 1}).p, 2 * std::pow(0.5, 6));
  EXPECT_DOUBLE_EQ(sign_test(std::vector<double>{1, -1, 0}).p, 1);
  EXPECT_EQ(sign_test(std::vector<double>{0, 0}).positive, 0);
  EXPECT_DOUBLE_EQ(sign_test(std::vector<double>{0, 0}).p, 1);
}

TEST(Paired, EightPairsDetectAbout115Hundredths) { EXPECT_NEAR(smallest_detectable_effect(8, 1), 1.15, 0.01); }

TEST(Paired, FloorNeedsFortyPairs) {
  std::vector<double> values(39, 0.01);
  EXPECT_FALSE(aa_floor(values, 8).has_value());
  values.push_back(0.01);
  EXPECT_NEAR(aa_floor(values, 8).value(), 0.01, 1e-12) << "no spread: the offset alone";
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 0.02 : -0.02;
  const double s = 0.02 * std::sqrt(40.0 / 39.0);
  EXPECT_NEAR(aa_floor(values, 8).value(), 2.022691 * s / std::sqrt(8.0), 1e-7);
}

TEST(Paired, MatchedPairsCompareBlockByBlock) {
  const PairBlocks matched{{1, 10, 100}, {2, 30, 400}, true};  // ratios 2, 3, 4
  EXPECT_NEAR(pair_log_ratio(matched), std::log(3.0), 1e-14);
  const PairBlocks apart{{1, 10, 100}, {2, 30, 400, 500}, false};  // medians 10 and 215
  EXPECT_NEAR(pair_log_ratio(apart), std::log(21.5), 1e-14);
  EXPECT_THROW(static_cast<void>(pair_log_ratio({{1}, {2, 3}, true})), Error);
  EXPECT_THROW(static_cast<void>(pair_log_ratio({{}, {2}, false})), Error);
}

TEST(Paired, BootstrapOfPairsWithoutSpreadIsAPoint) {
  const std::vector<PairBlocks> pairs(5, PairBlocks{{1, 1}, {2, 2}, true});
  const Interval interval = hierarchical_bootstrap(pairs, 7);
  EXPECT_DOUBLE_EQ(interval.low, std::log(2.0));
  EXPECT_DOUBLE_EQ(interval.high, std::log(2.0));
}

// With one block a pair only pairs are drawn: the percentile interval of a mean of k normal values is about
// 2 * 1.96 * s * sqrt((k - 1) / k) / sqrt(k) wide.
TEST(Paired, BootstrapWidthFollowsTheSpread) {
  Random random(3);
  std::vector<PairBlocks> pairs;
  std::vector<double> y;
  for (int i = 0; i < 40; ++i) {
    y.push_back(0.1 + 0.02 * random.normal());
    pairs.push_back({{1}, {std::exp(y.back())}, true});
  }
  const MeanInterval t = t_interval(y);
  const Interval boot = hierarchical_bootstrap(pairs, 11);
  EXPECT_NEAR(boot.width() / t.interval.width(), 1.96 * std::sqrt(39.0 / 40.0) / 2.0227, 0.04);
  const Interval again = hierarchical_bootstrap(pairs, 11);
  EXPECT_EQ(boot.low, again.low) << "the seed fixes it";
  EXPECT_NE(boot.low, hierarchical_bootstrap(pairs, 12).low);
}

TEST(Paired, BootstrapDrawsBlocksToo) {
  // No spread between the pairs' medians, but inside: only the second level can widen the interval.
  const std::vector<PairBlocks> pairs(8, PairBlocks{{1, 1, 1}, {1.0, 1.1, 1.2}, true});
  EXPECT_GT(hierarchical_bootstrap(pairs, 5).width(), 0.02);
  const std::vector<PairBlocks> apart(8, PairBlocks{{1, 1, 1}, {1.0, 1.1, 1.2}, false});
  EXPECT_GT(hierarchical_bootstrap(apart, 5).width(), 0.02);
}

}  // namespace
}  // namespace eb::stats
