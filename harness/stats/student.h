// Student's t. Pure.
#pragma once

namespace eb::stats {

// Regularised incomplete beta function I_x(a, b), a and b > 0, 0 <= x <= 1; continued fraction, about 1e-14.
[[nodiscard]] double incomplete_beta(double a, double b, double x);
// P(T <= t) with `df` > 0 degrees of freedom.
[[nodiscard]] double student_cdf(double t, double df);
// The t with P(T <= t) = p, 0 < p < 1.
[[nodiscard]] double student_quantile(double p, double df);

}  // namespace eb::stats
