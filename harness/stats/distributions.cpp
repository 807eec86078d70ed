#include "harness/stats/distributions.h"

#include <cmath>
#include <limits>

#include "harness/base/error.h"

namespace eb::stats {

namespace {

// The continued fraction of I_x(a, b) converges fast for x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  const auto away_from_zero = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1;
  double d = 1 / away_from_zero(1 - (a + b) * x / (a + 1));
  double value = d;
  for (int i = 1; i <= 10000; ++i) {
    const double m = i;
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / away_from_zero(1 + even * d);
    c = away_from_zero(1 + even / c);
    value *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / away_from_zero(1 + odd * d);
    c = away_from_zero(1 + odd / c);
    const double factor = d * c;
    value *= factor;
    if (std::abs(factor - 1) < 1e-15) return value;
  }
  fail(Exit::failure, "the incomplete beta function did not converge for a {}, b {}, x {}", a, b, x);
}

// The x at which `below(x)` is p, by bisection on a bracket that is widened first: slow, and right to the last digits.
template <typename Cdf>
double invert(Cdf below, double p) {
  double low = -1;
  double high = 1;
  while (below(low) > p && std::isfinite(low)) low *= 2;
  while (below(high) < p && std::isfinite(high)) high *= 2;
  for (int i = 0; i < 2000; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (below(middle) < p ? low : high) = middle;
  }
  return low + (high - low) / 2;
}

}  // namespace

double incomplete_beta(double a, double b, double x) {
  if (!(a > 0 && b > 0 && x >= 0 && x <= 1)) {
    fail(Exit::failure, "the incomplete beta function is not defined for a {}, b {}, x {}", a, b, x);
  }
  if (x == 0 || x == 1) return x;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double t_cdf(double t, double df) {
  if (!(df > 0) || std::isnan(t)) fail(Exit::failure, "Student's t is not defined for {} degrees of freedom", df);
  if (std::isinf(t)) return t > 0 ? 1 : 0;
  // P(|T| > |t|) = I_{df / (df + t^2)}(df / 2, 1 / 2): keeps the digits of a small tail.
  const double tail = incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2;
  return t > 0 ? 1 - tail : tail;
}

double t_quantile(double p, double df) {
  if (!(p > 0 && p < 1)) fail(Exit::failure, "a quantile of Student's t at {} is not defined", p);
  if (!(df > 0)) fail(Exit::failure, "Student's t is not defined for {} degrees of freedom", df);
  if (p == 0.5) return 0;
  // From the lower tail, which has its digits; the distribution is symmetric.
  const double low = invert([df](double t) { return t_cdf(t, df); }, p < 0.5 ? p : 1 - p);
  return p < 0.5 ? low : -low;
}

double normal_cdf(double z) { return std::erfc(-z / std::sqrt(2.0)) / 2; }

double normal_quantile(double p) {
  if (!(p > 0 && p < 1)) fail(Exit::failure, "a normal quantile at {} is not defined", p);
  if (p == 0.5) return 0;
  const double low = invert(normal_cdf, p < 0.5 ? p : 1 - p);
  return p < 0.5 ? low : -low;
}

}  // namespace eb::stats
