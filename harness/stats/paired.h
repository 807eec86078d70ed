// Inference over paired log ratios: the pair is the unit. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace eb::stats {

struct Interval {
  double low = 0;
  double high = 0;
  [[nodiscard]] double width() const noexcept { return high - low; }
};

struct MeanInterval {
  std::int64_t n = 0;
  double mean = 0;
  double deviation = 0;  // standard deviation of the values, n - 1 in the denominator
  Interval interval;     // mean -+ t(0.975, n - 1) * deviation / sqrt(n)
};

// log(b/a). Errors: Error(failure) where one of them is not positive and finite: such a value is no time.
[[nodiscard]] double log_ratio(double a, double b);

// 95 % interval of the mean by Student's t. Errors: Error(failure) below two values, or for a value that is not finite.
[[nodiscard]] MeanInterval t_interval(std::span<const double> values);

// 95 % interval of mean(b) - mean(a) of two independent samples (Welch: unequal variances, Satterthwaite's degrees of
// freedom). Errors: Error(failure) below two values a side.
struct WelchInterval {
  double difference = 0;
  double df = 0;
  Interval interval;
};
[[nodiscard]] WelchInterval welch_interval(std::span<const double> a, std::span<const double> b);

// Two-sided exact sign test: P of a split at least as uneven under a fair coin. Zeros are left out; with nothing left
// p is 1.
struct SignTest {
  std::int64_t positive = 0;
  std::int64_t negative = 0;
  double p = 1;
};
[[nodiscard]] SignTest sign_test(std::span<const double> values);
// The same of counts.
[[nodiscard]] double sign_test(std::int64_t wins, std::int64_t losses);

// Smallest |mean| that a two-sided test at 5 % over `pairs` pairs finds with 80 % probability:
// (t(0.975, k - 1) + t(0.8, k - 1)) * deviation / sqrt(k); about 1.15 deviations at k = 8.
[[nodiscard]] double smallest_detectable_effect(std::int64_t pairs, double deviation);

// Effect of one arm over another from pairs of figures, as a ratio.
struct PairedEffect {
  std::int64_t pairs = 0;
  double ratio = 1;  // exp(mean of log(b/a))
  double low = 1;    // 95 % interval by t over the pairs
  double high = 1;
  double log_deviation = 0;   // s: standard deviation of log(b/a)
  double detectable_log = 0;  // smallest_detectable_effect
};
// a[i] and b[i] > 0 are the two arms' figures of pair i. Empty below two pairs. Errors: Error(failure) for lengths that
// differ or a figure that is not positive.
[[nodiscard]] std::optional<PairedEffect> paired_effect(std::span<const double> a, std::span<const double> b);

// What the same arm against itself reaches: |mean| + t(0.975, n - 1) * s / sqrt(k), from the n stored A/A log ratios,
// for an experiment of k pairs. Empty below `minimum` stored pairs.
inline constexpr std::int64_t kFloorPairs = 40;
[[nodiscard]] std::optional<double> aa_floor(std::span<const double> log_ratios, std::int64_t pairs);

// One pair: block medians of the two arms. `matched`: block i of a and of b ran inside one re-roll, next to each other;
// else the arms had re-rolls of their own and their blocks have nothing in common.
struct PairBlocks {
  std::vector<double> a;
  std::vector<double> b;
  bool matched = true;
};

// y of the pair. Matched: median over blocks of log(b_i/a_i); else log(median(b)/median(a)). Errors: Error(failure) for
// an empty side, or matched sides of different length.
[[nodiscard]] double pair_log_ratio(const PairBlocks& pair);

// Hierarchical bootstrap of mean(y): pairs drawn with replacement, then blocks inside each drawn pair (matched blocks
// together). Percentile interval, 95 %; the same seed gives the same interval. Errors: as pair_log_ratio, and below two
// pairs.
[[nodiscard]] Interval hierarchical_bootstrap(std::span<const PairBlocks> pairs, std::uint64_t seed,
                                              int resamples = 4000);

}  // namespace eb::stats
