// Location and spread of one cell of samples. Pure; outliers stay in.
#pragma once

#include <cstdint>
#include <span>

namespace eb::stats {

struct Summary {
  std::int64_t n = 0;
  double median = 0;
  double q1 = 0;
  double q3 = 0;
  double mad = 0;  // median of |x - median|, not scaled
  double min = 0;
  double max = 0;
};

// Quantile 0 <= p <= 1 of ascending `sorted` (not empty): linear between order statistics, position p*(n-1). The rule
// of numpy.quantile's default (type 7 of Hyndman and Fan).
[[nodiscard]] double quantile(std::span<const double> sorted, double p);

// Errors: Error(failure) for an empty set (an empty sample set is a failure, never a zero) and for NaN.
[[nodiscard]] Summary summarize(std::span<const double> values);

[[nodiscard]] double median(std::span<const double> values);

}  // namespace eb::stats
