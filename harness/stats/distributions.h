// Student's t, the normal distribution and the incomplete beta function. Pure.
#pragma once

namespace eb::stats {

// Regularised incomplete beta function I_x(a, b), a, b > 0, 0 <= x <= 1: continued fraction (Lentz's method), relative
// error about 1e-13. Errors: Error(failure) outside that range.
[[nodiscard]] double incomplete_beta(double a, double b, double x);

// P(T <= t) with `df` > 0 degrees of freedom (need not be whole: Welch).
[[nodiscard]] double t_cdf(double t, double df);
// The t with P(T <= t) = p, 0 < p < 1. Errors: Error(failure) for other p or df.
[[nodiscard]] double t_quantile(double p, double df);

[[nodiscard]] double normal_cdf(double z);
[[nodiscard]] double normal_quantile(double p);

}  // namespace eb::stats
