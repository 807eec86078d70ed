#include "harness/stats/tests.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "harness/base/error.h"
#include "harness/stats/distributions.h"
#include "harness/stats/random.h"

namespace eb::stats {

namespace {

constexpr std::size_t kExactSide = 8;
constexpr std::size_t kExactOther = 400;
constexpr std::size_t kSmallestClustered = 6;
constexpr int kClusterDraws = 2000;
constexpr std::uint64_t kClusterSeed = 20240229;

// P(U <= u) for sides of n and m values without ties: the number of ways, by the recursion over the largest value, as
// shares so that it never overflows. n is the smaller side.
double exact_below(std::int64_t u, std::size_t n, std::size_t m) {
  // ways[j][s]: share of subsets of j out of the values seen so far whose ranks give U = s.
  const std::size_t top = n * m;
  std::vector<std::vector<double>> ways(n + 1, std::vector<double>(top + 1, 0.0));
  ways[0][0] = 1;
  for (std::size_t i = 1; i <= n + m; ++i) {
    for (std::size_t j = std::min(i, n); j >= 1; --j) {
      const std::size_t others = i - j;  // values of the other side below the i-th, were it of this side
      if (others > m) continue;
      for (std::size_t s = top; s + 1 > others; --s) ways[j][s] += ways[j - 1][s - others];
    }
  }
  const double all = std::accumulate(ways[n].begin(), ways[n].end(), 0.0);
  double sum = 0;
  for (std::size_t s = 0; s <= top && static_cast<std::int64_t>(s) <= u; ++s) sum += ways[n][s];
  return sum / all;
}

struct Split {
  std::size_t lower = 0;
  double explained = 0;
};

// `sorted` ascending. Prefix sums give every split's sum of squares in one pass.
Split best_split(const std::vector<double>& sorted) {
  const auto n = static_cast<double>(sorted.size());
  const double mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / n;
  double total = 0;
  for (const double x : sorted) total += (x - mean) * (x - mean);
  Split best;
  if (total == 0) return best;
  double below = 0;  // sum of the deviations of the lower group
  for (std::size_t i = 0; i + 2 < sorted.size(); ++i) {
    below += sorted[i] - mean;
    const auto count = static_cast<double>(i + 1);
    if (i < 1) continue;
    const double explained = below * below * (1 / count + 1 / (n - count)) / total;
    if (explained > best.explained) best = {i + 1, explained};
  }
  return best;
}

}  // namespace

MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b) {
  if (a.empty() || b.empty()) fail(Exit::failure, "a rank test with an empty side");
  struct Value {
    double value;
    bool first;
  };
  std::vector<Value> all;
  for (const double x : a) all.push_back({x, true});
  for (const double x : b) all.push_back({x, false});
  if (std::any_of(all.begin(), all.end(), [](const Value& v) { return std::isnan(v.value); })) {
    fail(Exit::failure, "a rank test over a value that is not a number");
  }
  std::sort(all.begin(), all.end(), [](const Value& x, const Value& y) { return x.value < y.value; });
  const auto n = static_cast<double>(a.size());
  const auto m = static_cast<double>(b.size());
  double ranks = 0;  // of the first side; equal values share the mean of their ranks
  double ties = 0;   // sum of t^3 - t
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i;
    while (end < all.size() && all[end].value == all[i].value) ++end;
    const auto count = static_cast<double>(end - i);
    const double rank = static_cast<double>(i) + (count + 1) / 2;
    for (std::size_t k = i; k < end; ++k) ranks += all[k].first ? rank : 0;
    ties += count * count * count - count;
    i = end;
  }
  MannWhitney out;
  out.u = ranks - n * (n + 1) / 2;
  const double larger = std::max(out.u, n * m - out.u);
  out.exact = ties == 0 && std::min(a.size(), b.size()) <= kExactSide && std::max(a.size(), b.size()) <= kExactOther;
  if (out.exact) {
    // By symmetry P(U >= larger) = P(U <= n m - larger).
    const auto u = static_cast<std::int64_t>(std::llround(n * m - larger));
    out.p = std::min(1.0, 2 * exact_below(u, std::min(a.size(), b.size()), std::max(a.size(), b.size())));
    return out;
  }
  const double total = n + m;
  const double variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)));
  if (variance <= 0) return out;  // all values are equal
  const double z = (larger - n * m / 2 - 0.5) / std::sqrt(variance);
  out.p = std::min(1.0, 2 * normal_cdf(-z));
  return out;
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return p[x] < p[y]; });
  std::vector<double> out(p.size());
  double least = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    least = std::max(least, std::min(1.0, p[order[i]] * static_cast<double>(p.size() - i)));
    out[order[i]] = least;
  }
  return out;
}

std::optional<TwoClusters> two_clusters(std::span<const double> values) {
  if (values.size() < kSmallestClustered) return std::nullopt;
  std::vector<double> sorted(values.begin(), values.end());
  if (std::any_of(sorted.begin(), sorted.end(), [](double x) { return !std::isfinite(x); })) {
    fail(Exit::failure, "clusters of values that are not finite");
  }
  std::sort(sorted.begin(), sorted.end());
  const Split split = best_split(sorted);
  TwoClusters out;
  out.lower = split.lower;
  out.upper = sorted.size() - split.lower;
  out.explained = split.explained;
  if (split.lower == 0) return out;  // all equal: one group
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(split.lower);
  out.lower_mean = std::accumulate(sorted.begin(), middle, 0.0) / static_cast<double>(out.lower);
  out.upper_mean = std::accumulate(middle, sorted.end(), 0.0) / static_cast<double>(out.upper);
  Random random(kClusterSeed);
  int reached = 0;
  for (int draw = 0; draw < kClusterDraws; ++draw) {
    for (double& x : sorted) x = random.normal();
    std::sort(sorted.begin(), sorted.end());
    reached += best_split(sorted).explained >= split.explained ? 1 : 0;
  }
  out.p = (reached + 1.0) / (kClusterDraws + 1.0);
  return out;
}

}  // namespace eb::stats
