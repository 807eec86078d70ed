#include "harness/stats/paired.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/base/error.h"
#include "harness/stats/student.h"
#include "harness/stats/tail.h"

namespace eb::stats {

std::optional<PairedEffect> paired_effect(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) fail(Exit::failure, "{} figures of one arm and {} of the other", a.size(), b.size());
  std::vector<double> logs;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] > 0 && b[i] > 0))
      fail(Exit::failure, "pair {}: a ratio needs positive figures, found {} and {}", i, a[i], b[i]);
    logs.push_back(std::log(b[i] / a[i]));
  }
  if (logs.size() < 2) return std::nullopt;
  const auto k = static_cast<double>(logs.size());
  double mean = 0;
  for (const double x : logs) mean += x / k;
  double squares = 0;
  for (const double x : logs) squares += (x - mean) * (x - mean);
  PairedEffect effect;
  effect.pairs = static_cast<std::int64_t>(logs.size());
  effect.log_deviation = std::sqrt(squares / (k - 1));
  const double error = effect.log_deviation / std::sqrt(k);
  const double t = student_quantile(0.975, k - 1);
  effect.ratio = std::exp(mean);
  effect.low = std::exp(mean - t * error);
  effect.high = std::exp(mean + t * error);
  effect.detectable_log = (t + student_quantile(0.8, k - 1)) * error;
  return effect;
}

double sign_test(std::int64_t wins, std::int64_t losses) {
  const std::int64_t n = wins + losses;
  if (n == 0) return 1;
  return std::min(1.0, 2 * binomial_cdf(std::min(wins, losses), n, 0.5));
}

}  // namespace eb::stats
