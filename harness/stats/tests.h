// Rank test, correction for several tests, and the question whether values form two clusters. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace eb::stats {

// Two-sided Mann-Whitney U test. Exact where one side has at most 8 values, the other at most 400, and no two are
// equal; else the normal approximation with correction for ties and continuity. Errors: Error(failure) for an empty
// side.
struct MannWhitney {
  double u = 0;  // of the first sample
  double p = 1;
  bool exact = false;
};
[[nodiscard]] MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b);

// p values adjusted by Holm's step-down rule, in the order given: below alpha means rejected with a family-wise error
// of at most alpha.
[[nodiscard]] std::vector<double> holm(std::span<const double> p);

// Do the values form two groups rather than one? Best split of the sorted values into two groups of at least two;
// statistic: share of the sum of squares that the split explains; p: how often as many values of one normal
// distribution reach it (2000 draws from a fixed seed). Empty below 6 values.
struct TwoClusters {
  std::size_t lower = 0;  // values in the lower group
  std::size_t upper = 0;
  double lower_mean = 0;
  double upper_mean = 0;
  double explained = 0;
  double p = 1;
  [[nodiscard]] bool found() const noexcept { return p <= 0.01; }
};
[[nodiscard]] std::optional<TwoClusters> two_clusters(std::span<const double> values);

}  // namespace eb::stats
