// A small generator for resampling: the same seed gives the same stream on every machine and compiler, which
// std::uniform_int_distribution does not promise. Internal to harness/stats.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace eb::stats {

class Random {  // splitmix64
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t x = (state_ += 0x9E3779B97F4A7C15ULL);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
  }
  // 0 .. n-1. The bias of the remainder is below n / 2^53, far under what a resample can show.
  std::size_t below(std::size_t n) noexcept { return static_cast<std::size_t>(unit() * static_cast<double>(n)); }
  // [0, 1)
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal() noexcept {  // Box-Muller, one of the two
    const double radius = std::sqrt(-2 * std::log(1 - unit()));
    return radius * std::cos(2 * std::numbers::pi * unit());
  }

 private:
  std::uint64_t state_;
};

}  // namespace eb::stats
