#include "harness/stats/tail.h"

#include <algorithm>
#include <cmath>

#include "harness/base/error.h"
#include "harness/stats/summary.h"

namespace eb::stats {

namespace {
constexpr double kSide = 0.025;  // one side of a 95 % interval
}

std::int64_t minimum_samples(double p) {
  if (!(p > 0 && p < 1)) fail(Exit::failure, "quantile {} has no tail to bound", p);
  const double far = std::max(p, 1 - p);
  return static_cast<std::int64_t>(std::ceil(std::log(kSide) / std::log(far) - 1e-9));
}

double binomial_cdf(std::int64_t k, std::int64_t n, double p) {
  if (k < 0) return 0;
  if (k >= n) return 1;
  // Sums the shorter side outward from the boundary term, so that small tails keep their digits.
  const double log_p = std::log(p);
  const double log_q = std::log1p(-p);
  const auto log_term = [&](std::int64_t i) {
    const auto x = static_cast<double>(i);
    const auto m = static_cast<double>(n);
    return std::lgamma(m + 1) - std::lgamma(x + 1) - std::lgamma(m - x + 1) + x * log_p + (m - x) * log_q;
  };
  const bool lower = static_cast<double>(k) < static_cast<double>(n) * p;
  double term = std::exp(log_term(lower ? k : k + 1));
  double sum = 0;
  if (lower) {
    for (std::int64_t i = k; i >= 0 && term > 0; --i) {
      sum += term;
      if (term < sum * 1e-17) break;
      term *= static_cast<double>(i) * (1 - p) / (static_cast<double>(n - i + 1) * p);
    }
    return sum;
  }
  for (std::int64_t i = k + 1; i <= n && term > 0; ++i) {
    sum += term;
    if (term < sum * 1e-17) break;
    term *= static_cast<double>(n - i) * p / (static_cast<double>(i + 1) * (1 - p));
  }
  return 1 - sum;
}

std::optional<QuantileInterval> quantile_interval(std::span<const double> sorted, double p) {
  const auto n = static_cast<std::int64_t>(sorted.size());
  if (n < minimum_samples(p)) return std::nullopt;
  // X_(l) lies above the quantile with probability P(Bin < l) = cdf(l - 1); the largest l with cdf(l - 1) <= side.
  std::int64_t low = 0;
  for (std::int64_t step = std::int64_t{1} << 62; step > 0; step >>= 1) {
    if (low + step <= n && binomial_cdf(low + step - 1, n, p) <= kSide) low += step;
  }
  // X_(u) lies below the quantile with probability P(Bin >= u) = 1 - cdf(u - 1); the smallest u with that <= side.
  std::int64_t below = 0;  // the largest u that still fails
  for (std::int64_t step = std::int64_t{1} << 62; step > 0; step >>= 1) {
    if (below + step <= n && binomial_cdf(below + step - 1, n, p) < 1 - kSide) below += step;
  }
  const std::int64_t high = below + 1;
  if (low < 1 || high > n) return std::nullopt;
  return QuantileInterval{quantile(sorted, p), sorted[static_cast<std::size_t>(low - 1)],
                          sorted[static_cast<std::size_t>(high - 1)], low, high};
}

}  // namespace eb::stats
