// Effect of one arm over another from pairs, as a ratio. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace eb::stats {

struct PairedEffect {
  std::int64_t pairs = 0;
  double ratio = 1;  // exp(mean of log(b/a))
  double low = 1;    // 95 % interval by t over the pairs
  double high = 1;
  double log_deviation = 0;  // s: standard deviation of log(b/a)
  // Smallest effect, as |log ratio|, that this many pairs of this deviation show with 80 % power at two-sided 5 %:
  // (t_.975 + t_.80) * s / sqrt(k) with k-1 degrees of freedom: 1.15 s at k = 8.
  double detectable_log = 0;
};

// a[i] and b[i] > 0 are the two arms' figures of pair i. Empty below two pairs. Errors: Error(failure) for lengths that
// differ or a figure that is not positive.
[[nodiscard]] std::optional<PairedEffect> paired_effect(std::span<const double> a, std::span<const double> b);

// Two-sided exact sign test: probability of a split at least as uneven as `wins` : `losses` by chance (ties left out by
// the caller). 1 where there is none.
[[nodiscard]] double sign_test(std::int64_t wins, std::int64_t losses);

}  // namespace eb::stats
