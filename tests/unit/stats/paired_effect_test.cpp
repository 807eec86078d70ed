#include "harness/stats/paired.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "harness/base/error.h"
#include "harness/stats/distributions.h"

namespace eb::stats {
namespace {

TEST(Student, ClosedForms) {
  for (const double t : {-3.0, -0.5, 0.0, 0.7, 12.0}) {
    EXPECT_NEAR(t_cdf(t, 1), 0.5 + std::atan(t) / std::numbers::pi, 1e-13);  // Cauchy
    EXPECT_NEAR(t_cdf(t, 2), 0.5 + t / (2 * std::sqrt(2 + t * t)), 1e-13);
    EXPECT_NEAR(t_cdf(t, 4), 0.5 + 0.375 * (t / std::sqrt(1 + t * t / 4)) * (1 - t * t / (12 * (1 + t * t / 4))),
                1e-13);
  }
  EXPECT_NEAR(incomplete_beta(2, 3, 0.4), 0.5248, 1e-13);  // a polynomial
  EXPECT_THROW((void)t_cdf(1, 0), Error);
}

// scipy.stats.t.ppf.
TEST(Student, QuantilesOfScipy) {
  EXPECT_NEAR(t_quantile(0.975, 7), 2.364624251592785, 1e-11);
  EXPECT_NEAR(t_quantile(0.975, 39), 2.022690920036761, 1e-11);
  EXPECT_NEAR(t_quantile(0.8, 7), 0.8960296443137653, 1e-11);
  EXPECT_NEAR(t_quantile(0.025, 3), -3.1824463052837086, 1e-11);
  EXPECT_NEAR(t_quantile(0.9995, 1000), 3.300282648423944, 1e-9);
}

TEST(PairedEffect, RatioAndIntervalByHand) {
  // log ratios 0.1, 0.2, 0.3: mean 0.2, s 0.1, t_.975(2) = 4.302652729911275.
  const std::vector<double> a = {1, 2, 5};
  const std::vector<double> b = {std::exp(0.1), 2 * std::exp(0.2), 5 * std::exp(0.3)};
  const auto effect = paired_effect(a, b);
  ASSERT_TRUE(effect);
  EXPECT_NEAR(effect->ratio, std::exp(0.2), 1e-12);
  EXPECT_NEAR(effect->log_deviation, 0.1, 1e-12);
  const double half = 4.302652729911275 * 0.1 / std::sqrt(3);
  EXPECT_NEAR(effect->low, std::exp(0.2 - half), 1e-9);
  EXPECT_NEAR(effect->high, std::exp(0.2 + half), 1e-9);
}

TEST(PairedEffect, SmallestDetectableEffectOfEightPairs) {
  std::vector<double> a(8, 1.0);
  std::vector<double> b;
  for (int i = 0; i < 8; ++i) b.push_back(std::exp(i % 2 == 0 ? 0.01 : -0.01));
  const auto effect = paired_effect(a, b);
  EXPECT_NEAR(effect->detectable_log / effect->log_deviation, 1.15, 0.005);
}

TEST(PairedEffect, TooFewOrWrongPairs) {
  EXPECT_FALSE(paired_effect(std::vector<double>{1}, std::vector<double>{2}));
  EXPECT_THROW((void)paired_effect(std::vector<double>{1, 2}, std::vector<double>{2}), Error);
  EXPECT_THROW((void)paired_effect(std::vector<double>{1, 0}, std::vector<double>{2, 2}), Error);
}

TEST(SignTest, Exact) {
  EXPECT_NEAR(sign_test(6, 0), 0.03125, 1e-14);  // six pairs are the fewest that can show anything at .05
  EXPECT_NEAR(sign_test(5, 0), 0.0625, 1e-14);
  EXPECT_NEAR(sign_test(7, 1), 0.0703125, 1e-14);
  EXPECT_DOUBLE_EQ(sign_test(4, 4), 1);
  EXPECT_DOUBLE_EQ(sign_test(0, 0), 1);
}

}  // namespace
}  // namespace eb::stats
