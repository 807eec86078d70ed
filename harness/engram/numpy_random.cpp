#include "harness/engram/numpy_random.h"

#include <bit>
#include <limits>

namespace eb::engram {

namespace {

constexpr std::uint32_t kShift = 16;

// The multiplier of each hashing step depends on how many steps came before it.
struct HashStep {
  std::uint32_t constant;
  std::uint32_t factor;

  std::uint32_t operator()(std::uint32_t value) noexcept {
    value ^= constant;
    constant *= factor;
    value *= constant;
    return value ^ (value >> kShift);
  }
};

std::uint32_t mix(std::uint32_t x, std::uint32_t y) noexcept {
  const std::uint32_t result = 0xCA01F9DDU * x - 0x4973F715U * y;
  return result ^ (result >> kShift);
}

}  // namespace

SeedSequence::SeedSequence(std::uint64_t seed) noexcept {
  // A seed below 2^32 is one word of entropy, else two; missing words of the pool count as zero, so both cases are one.
  const std::array<std::uint32_t, 4> entropy = {static_cast<std::uint32_t>(seed),
                                                static_cast<std::uint32_t>(seed >> 32), 0, 0};
  HashStep hash{0x43B0D7E5U, 0x931E8875U};
  for (std::size_t i = 0; i < pool_.size(); ++i) pool_[i] = hash(entropy[i]);
  for (std::size_t source = 0; source < pool_.size(); ++source) {
    for (std::size_t target = 0; target < pool_.size(); ++target) {
      if (source != target) pool_[target] = mix(pool_[target], hash(pool_[source]));
    }
  }
}

std::array<std::uint64_t, 4> SeedSequence::state() const noexcept {
  HashStep hash{0x8B51F9DDU, 0x58F38DEDU};
  std::array<std::uint64_t, 4> words{};
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint64_t half = hash(pool_[i % pool_.size()]);
    words[i / 2] |= half << (32 * (i % 2));
  }
  return words;
}

NumpyGenerator::NumpyGenerator(std::uint64_t seed) noexcept {
  const auto words = SeedSequence(seed).state();
  const Wide initial = (static_cast<Wide>(words[0]) << 64) | words[1];
  const Wide sequence = (static_cast<Wide>(words[2]) << 64) | words[3];
  increment_ = (sequence << 1) | 1U;
  step();
  state_ += initial;
  step();
}

void NumpyGenerator::step() noexcept {
  constexpr Wide kMultiplier = (static_cast<Wide>(2549297995355413924ULL) << 64) | 4865540595714422341ULL;
  state_ = state_ * kMultiplier + increment_;
}

std::uint64_t NumpyGenerator::next_u64() noexcept {
  step();
  const auto high = static_cast<std::uint64_t>(state_ >> 64);
  const auto low = static_cast<std::uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

std::uint32_t NumpyGenerator::next_u32() noexcept {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const std::uint64_t draw = next_u64();
  has_half_ = true;
  half_ = static_cast<std::uint32_t>(draw >> 32);
  return static_cast<std::uint32_t>(draw);
}

// D. Lemire, "Fast Random Integer Generation in an Interval" (2019): the high half of draw * high, redrawn where the
// low half falls into the part that would favour some results.
std::int64_t NumpyGenerator::below(std::int64_t high) noexcept {
  const auto range = static_cast<std::uint64_t>(high);
  if (range <= 1) return 0;  // NumPy draws nothing for a single value
  if (range == std::uint64_t{1} << 32) return next_u32();
  if (range < std::uint64_t{1} << 32) {
    const auto narrow = static_cast<std::uint32_t>(range);
    std::uint64_t product = static_cast<std::uint64_t>(next_u32()) * narrow;
    if (static_cast<std::uint32_t>(product) < narrow) {
      const std::uint32_t threshold = (std::numeric_limits<std::uint32_t>::max() - (narrow - 1)) % narrow;
      while (static_cast<std::uint32_t>(product) < threshold) product = static_cast<std::uint64_t>(next_u32()) * narrow;
    }
    return static_cast<std::int64_t>(product >> 32);
  }
  Wide product = static_cast<Wide>(next_u64()) * range;
  if (static_cast<std::uint64_t>(product) < range) {
    const std::uint64_t threshold = (std::numeric_limits<std::uint64_t>::max() - (range - 1)) % range;
    while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<Wide>(next_u64()) * range;
  }
  return static_cast<std::int64_t>(product >> 64);
}

}  // namespace eb::engram
