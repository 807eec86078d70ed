#include "harness/stats/student.h"

#include <cmath>

#include "harness/base/error.h"

namespace eb::stats {

namespace {

// Lentz's evaluation of the continued fraction of the incomplete beta function (DLMF 8.17.22).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  const auto guarded = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1;
  double d = 1 / guarded(1 - (a + b) * x / (a + 1));
  double result = d;
  for (int m = 1; m < 10000; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / guarded(1 + even * d);
    c = guarded(1 + even / c);
    result *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / guarded(1 + odd * d);
    c = guarded(1 + odd / c);
    result *= d * c;
    if (std::abs(d * c - 1) < 1e-16) break;
  }
  return result;
}

}  // namespace

double incomplete_beta(double a, double b, double x) {
  if (!(a > 0 && b > 0 && x >= 0 && x <= 1)) fail(Exit::failure, "incomplete beta of ({}, {}, {})", a, b, x);
  if (x == 0 || x == 1) return x;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  // The fraction converges fast below the mean; above it the mirrored one does.
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double student_cdf(double t, double df) {
  if (!(df > 0)) fail(Exit::failure, "Student's t with {} degrees of freedom", df);
  const double tail = 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t * t));
  return t > 0 ? 1 - tail : tail;
}

double student_quantile(double p, double df) {
  if (!(p > 0 && p < 1)) fail(Exit::failure, "quantile {} of Student's t", p);
  if (p < 0.5) return -student_quantile(1 - p, df);
  double low = 0;
  double high = 1;
  while (student_cdf(high, df) < p) high *= 2;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = 0.5 * (low + high);
    if (middle == low || middle == high) break;
    (student_cdf(middle, df) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace eb::stats
