#include "harness/stats/distributions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "harness/base/error.h"

namespace eb::stats {
namespace {

TEST(Distributions, TWithOneDegreeIsCauchy) {
  for (const double p : {0.001, 0.1, 0.5, 0.9, 0.975, 0.9999}) {
    EXPECT_NEAR(t_quantile(p, 1), std::tan(std::numbers::pi * (p - 0.5)), 1e-9 * (1 + std::abs(t_quantile(p, 1))));
  }
}

TEST(Distributions, TWithTwoDegreesHasAClosedForm) {
  for (const double p : {0.01, 0.3, 0.8, 0.975}) {
    const double a = 4 * p * (1 - p);
    EXPECT_NEAR(t_quantile(p, 2), 2 * (p - 0.5) * std::sqrt(2 / a), 1e-9);
    EXPECT_NEAR(t_cdf(t_quantile(p, 2), 2), p, 1e-13);
  }
}

TEST(Distributions, TableValues) {  // the familiar columns of printed tables
  EXPECT_NEAR(t_quantile(0.975, 7), 2.364624, 1e-6);
  EXPECT_NEAR(t_quantile(0.8, 7), 0.896030, 1e-6);
  EXPECT_NEAR(t_quantile(0.975, 39), 2.022691, 1e-6);
  EXPECT_NEAR(normal_quantile(0.975), 1.959964, 1e-6);
  EXPECT_NEAR(t_quantile(0.975, 1e9), normal_quantile(0.975), 1e-6);
}

TEST(Distributions, IncompleteBetaClosedForms) {
  for (const double x : {0.0, 0.1, 0.5, 0.97, 1.0}) {
    EXPECT_NEAR(incomplete_beta(1, 1, x), x, 1e-14);
    EXPECT_NEAR(incomplete_beta(3, 1, x), x * x * x, 1e-14);
    EXPECT_NEAR(incomplete_beta(1, 4, x), 1 - std::pow(1 - x, 4), 1e-14);
  }
}

TEST(Distributions, OutsideTheirRangeIsAnError) {
  EXPECT_THROW(static_cast<void>(t_quantile(0, 5)), Error);
  EXPECT_THROW(static_cast<void>(t_quantile(1, 5)), Error);
  EXPECT_THROW(static_cast<void>(t_quantile(0.5, 0)), Error) << "no degree of freedom";
  EXPECT_THROW(static_cast<void>(t_cdf(1, -1)), Error);
  EXPECT_THROW(static_cast<void>(incomplete_beta(1, 1, 1.5)), Error);
  EXPECT_THROW(static_cast<void>(normal_quantile(std::nan(""))), Error);
}

}  // namespace
}  // namespace eb::stats
