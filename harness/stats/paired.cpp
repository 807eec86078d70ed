#include "harness/stats/paired.h"

#include <algorithm>
#include <cmath>

#include "harness/base/error.h"
#include "harness/stats/distributions.h"
#include "harness/stats/random.h"
#include "harness/stats/summary.h"
#include "harness/stats/tail.h"

namespace eb::stats {

namespace {

constexpr double kUpper = 0.975;
constexpr double kPower = 0.8;

struct Moments {
  double n = 0;
  double mean = 0;
  double variance = 0;
};

Moments moments(std::span<const double> values) {
  if (values.size() < 2) fail(Exit::failure, "an interval needs two values, found {}", values.size());
  Moments out;
  out.n = static_cast<double>(values.size());
  for (const double x : values) {
    if (!std::isfinite(x)) fail(Exit::failure, "an interval over a value that is not finite");
    out.mean += x / out.n;
  }
  for (const double x : values) out.variance += (x - out.mean) * (x - out.mean) / (out.n - 1);
  return out;
}

// Draws values[...] with replacement into `out`.
void resample(std::span<const double> values, Random& random, std::vector<double>& out) {
  out.clear();
  for (std::size_t i = 0; i < values.size(); ++i) out.push_back(values[random.below(values.size())]);
}

std::vector<double> block_log_ratios(const PairBlocks& pair) {
  std::vector<double> out;
  for (std::size_t i = 0; i < pair.a.size(); ++i) out.push_back(log_ratio(pair.a[i], pair.b[i]));
  return out;
}

void check_pair(const PairBlocks& pair) {
  if (pair.a.empty() || pair.b.empty()) fail(Exit::failure, "a pair without a block on one side");
  if (pair.matched && pair.a.size() != pair.b.size()) {
    fail(Exit::failure, "a pair with {} blocks on one side and {} on the other", pair.a.size(), pair.b.size());
  }
}

}  // namespace

double log_ratio(double a, double b) {
  if (!(a > 0 && b > 0 && std::isfinite(a) && std::isfinite(b))) {
    fail(Exit::failure, "the ratio of {} to {} has no logarithm", b, a);
  }
  return std::log(b / a);
}

MeanInterval t_interval(std::span<const double> values) {
  const Moments m = moments(values);
  const double half = t_quantile(kUpper, m.n - 1) * std::sqrt(m.variance / m.n);
  return {static_cast<std::int64_t>(values.size()), m.mean, std::sqrt(m.variance), {m.mean - half, m.mean + half}};
}

WelchInterval welch_interval(std::span<const double> a, std::span<const double> b) {
  const Moments left = moments(a);
  const Moments right = moments(b);
  const double u = left.variance / left.n;
  const double v = right.variance / right.n;
  WelchInterval out;
  out.difference = right.mean - left.mean;
  out.df = u + v == 0 ? left.n + right.n - 2 : (u + v) * (u + v) / (u * u / (left.n - 1) + v * v / (right.n - 1));
  const double half = t_quantile(kUpper, out.df) * std::sqrt(u + v);
  out.interval = {out.difference - half, out.difference + half};
  return out;
}

SignTest sign_test(std::span<const double> values) {
  SignTest out;
  for (const double x : values) {
    out.positive += x > 0 ? 1 : 0;
    out.negative += x < 0 ? 1 : 0;
  }
  out.p = sign_test(out.positive, out.negative);
  return out;
}

double sign_test(std::int64_t wins, std::int64_t losses) {
  const std::int64_t n = wins + losses;
  return n == 0 ? 1 : std::min(1.0, 2 * binomial_cdf(std::min(wins, losses), n, 0.5));
}

std::optional<PairedEffect> paired_effect(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) fail(Exit::failure, "{} figures of one arm and {} of the other", a.size(), b.size());
  std::vector<double> logs;
  for (std::size_t i = 0; i < a.size(); ++i) logs.push_back(log_ratio(a[i], b[i]));
  if (logs.size() < 2) return std::nullopt;
  const MeanInterval m = t_interval(logs);
  return PairedEffect{m.n,
                      std::exp(m.mean),
                      std::exp(m.interval.low),
                      std::exp(m.interval.high),
                      m.deviation,
                      smallest_detectable_effect(m.n, m.deviation)};
}

double smallest_detectable_effect(std::int64_t pairs, double deviation) {
  if (pairs < 2) fail(Exit::failure, "one pair detects nothing");
  const auto k = static_cast<double>(pairs);
  return (t_quantile(kUpper, k - 1) + t_quantile(kPower, k - 1)) * deviation / std::sqrt(k);
}

std::optional<double> aa_floor(std::span<const double> log_ratios, std::int64_t pairs) {
  if (static_cast<std::int64_t>(log_ratios.size()) < kFloorPairs || pairs < 1) return std::nullopt;
  const Moments m = moments(log_ratios);
  return std::abs(m.mean) + t_quantile(kUpper, m.n - 1) * std::sqrt(m.variance / static_cast<double>(pairs));
}

double pair_log_ratio(const PairBlocks& pair) {
  check_pair(pair);
  if (pair.matched) return median(block_log_ratios(pair));
  return log_ratio(median(pair.a), median(pair.b));
}

Interval hierarchical_bootstrap(std::span<const PairBlocks> pairs, std::uint64_t seed, int resamples) {
  if (pairs.size() < 2) fail(Exit::failure, "a bootstrap over {} pair(s); it needs two", pairs.size());
  if (resamples < 40) fail(Exit::failure, "{} resamples cannot hold a 95 % interval", resamples);
  for (const PairBlocks& pair : pairs) check_pair(pair);
  std::vector<std::vector<double>> matched(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].matched) matched[i] = block_log_ratios(pairs[i]);
  }
  Random random(seed);
  std::vector<double> means;
  std::vector<double> a;
  std::vector<double> b;
  means.reserve(static_cast<std::size_t>(resamples));
  for (int r = 0; r < resamples; ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const std::size_t drawn = random.below(pairs.size());
      if (pairs[drawn].matched) {
        resample(matched[drawn], random, a);
        sum += median(a);
      } else {
        resample(pairs[drawn].a, random, a);
        resample(pairs[drawn].b, random, b);
        sum += log_ratio(median(a), median(b));
      }
    }
    means.push_back(sum / static_cast<double>(pairs.size()));
  }
  std::sort(means.begin(), means.end());
  return {quantile(means, 1 - kUpper), quantile(means, kUpper)};
}

}  // namespace eb::stats
