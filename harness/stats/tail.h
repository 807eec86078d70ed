// Quantiles with intervals from order statistics, and how many samples a tail needs. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace eb::stats {

// Smallest n whose order statistics can bound quantile p from above with 97.5 % confidence: p^n <= 0.025.
// p95: 72, p99: 368, p99.9: 3688. For p < 0.5 the lower side decides, by symmetry.
[[nodiscard]] std::int64_t minimum_samples(double p);

struct QuantileInterval {
  double value = 0;  // stats::quantile
  double low = 0;    // order statistics that hold quantile p with at least 95 % confidence (2.5 % a side)
  double high = 0;
  std::int64_t low_rank = 0;  // 1-based ranks of the two
  std::int64_t high_rank = 0;
};

// `sorted` ascending. Empty where n < minimum_samples(p). Exact binomial: P(X_(l) <= q) with X ~ Bin(n, p).
[[nodiscard]] std::optional<QuantileInterval> quantile_interval(std::span<const double> sorted, double p);

// P(Bin(n, p) <= k), summed in logarithms: exact to about 1e-12 for n up to 1e6.
[[nodiscard]] double binomial_cdf(std::int64_t k, std::int64_t n, double p);

}  // namespace eb::stats
