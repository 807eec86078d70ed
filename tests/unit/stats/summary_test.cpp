#include "harness/stats/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "harness/base/error.h"

namespace eb::stats {
namespace {

TEST(Summary, KnownSet) {
  const std::vector<double> values = {9, 1, 4, 2, 100};
  const Summary s = summarize(values);
  EXPECT_EQ(s.n, 5);
  EXPECT_DOUBLE_EQ(s.median, 4);
  EXPECT_DOUBLE_EQ(s.q1, 2);
  EXPECT_DOUBLE_EQ(s.q3, 9);
  EXPECT_DOUBLE_EQ(s.mad, 3);  // deviations 5 3 0 2 96
  EXPECT_DOUBLE_EQ(s.min, 1);
  EXPECT_DOUBLE_EQ(s.max, 100);  // an outlier stays
}

TEST(Summary, QuantileInterpolatesAsNumpyDoes) {
  const std::vector<double> sorted = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(quantile(sorted, 0.25), 1.75);
  EXPECT_DOUBLE_EQ(quantile(sorted, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(sorted, 1.0), 4);
  EXPECT_DOUBLE_EQ(quantile(sorted, 0.0), 1);
}

TEST(Summary, AnEmptySetIsAFailureNotAZero) {
  EXPECT_THROW((void)summarize({}), Error);
  EXPECT_THROW((void)median({}), Error);
}

TEST(Summary, NanIsRefused) {
  const std::vector<double> values = {1, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THROW((void)summarize(values), Error);
}

}  // namespace
}  // namespace eb::stats
