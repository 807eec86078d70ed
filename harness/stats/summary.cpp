#include "harness/stats/summary.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/base/error.h"

namespace eb::stats {

namespace {

std::vector<double> sorted_copy(std::span<const double> values) {
  if (values.empty()) fail(Exit::failure, "statistics of an empty sample set");
  std::vector<double> sorted(values.begin(), values.end());
  if (std::any_of(sorted.begin(), sorted.end(), [](double x) { return std::isnan(x); })) {
    fail(Exit::failure, "statistics of a sample set with a value that is not a number");
  }
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

double quantile(std::span<const double> sorted, double p) {
  if (sorted.empty()) fail(Exit::failure, "quantile of an empty sample set");
  if (!(p >= 0 && p <= 1)) fail(Exit::failure, "quantile {} is outside 0..1", p);
  const double place = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return part == 0 ? sorted[below] : sorted[below] + part * (sorted[above] - sorted[below]);
}

Summary summarize(std::span<const double> values) {
  std::vector<double> sorted = sorted_copy(values);
  Summary summary;
  summary.n = static_cast<std::int64_t>(sorted.size());
  summary.median = quantile(sorted, 0.5);
  summary.q1 = quantile(sorted, 0.25);
  summary.q3 = quantile(sorted, 0.75);
  summary.min = sorted.front();
  summary.max = sorted.back();
  for (double& x : sorted) x = std::abs(x - summary.median);
  std::sort(sorted.begin(), sorted.end());
  summary.mad = quantile(sorted, 0.5);
  return summary;
}

double median(std::span<const double> values) { return quantile(sorted_copy(values), 0.5); }

}  // namespace eb::stats
