#include "harness/replay/zipf_ngram.h"

#include <algorithm>
#include <cmath>

#include "harness/engram/content.h"

namespace eb::replay {

namespace {

using engram::splitmix64;

constexpr std::uint64_t kListsTag = 0x6E6772616DULL;  // sets the successor lists apart from the streams
constexpr std::size_t kGuideCells = std::size_t{1} << 16;

constexpr double kTwoTo32 = 0x1p-32;
constexpr double kTwoTo53 = 0x1p-53;

}  // namespace

ZipfNgramModel::ZipfNgramModel(const ZipfNgramParameters& parameters, std::int64_t vocabulary)
    : parameters_(parameters) {
  cumulative_.resize(static_cast<std::size_t>(vocabulary));
  double sum = 0;
  for (std::size_t r = 0; r < cumulative_.size(); ++r) {
    sum += std::pow(static_cast<double>(r) + 1.0 + parameters.shift, -parameters.exponent);
    cumulative_[r] = sum;
  }
  for (double& value : cumulative_) value /= sum;
  guide_.resize(kGuideCells + 1);
  for (std::size_t cell = 0; cell <= kGuideCells; ++cell) {
    const double unit = static_cast<double>(cell) / static_cast<double>(kGuideCells);
    guide_[cell] = static_cast<std::uint32_t>(std::ranges::upper_bound(cumulative_, unit) - cumulative_.begin());
  }
  for (int octave = 0; octave < kMaxOctave; ++octave) {
    const auto at = static_cast<std::size_t>(octave);
    one_[at] = std::exp2(-parameters.tail_one * (octave + 1));
    two_[at] = std::exp2(-parameters.tail_two * (octave + 1));
  }
}

// Inverse of the cumulative weights at the draw's upper 53 bits; the guide narrows the search to one cell.
std::int32_t ZipfNgramModel::quantile(std::uint64_t draw) const noexcept {
  const double unit = static_cast<double>(draw >> 11) * kTwoTo53;
  const auto cell = static_cast<std::size_t>(draw >> 48);
  const auto begin = cumulative_.begin();
  const auto found = std::upper_bound(begin + guide_[cell], begin + guide_[cell + 1], unit) - begin;
  return static_cast<std::int32_t>(std::min<std::ptrdiff_t>(found, std::ssize(cumulative_) - 1));
}

// Number k >= 1 of a successor: octave [2^o, 2^(o+1)) with chance 2^-(tail*o) - 2^-(tail*(o+1)), even inside it.
std::uint64_t ZipfNgramModel::successor(std::uint64_t draw, std::uint64_t place,
                                        const Thresholds& thresholds) noexcept {
  const double unit = static_cast<double>(draw & 0xFFFFFFFFU) * kTwoTo32;
  int octave = 0;
  while (octave < kMaxOctave && unit < thresholds[static_cast<std::size_t>(octave)]) ++octave;
  const std::uint64_t width = std::uint64_t{1} << octave;
  return width + (place & (width - 1));
}

void ZipfNgramModel::segment(std::uint64_t lists, std::uint64_t base, std::int64_t start, int count,
                             std::array<std::int32_t, kSegment>& tokens) const noexcept {
  const double pair_chance = parameters_.repeat * parameters_.pair_share;
  for (int place = 0; place < count; ++place) {
    const auto at = static_cast<std::size_t>(place);
    const std::uint64_t draw = splitmix64(base + static_cast<std::uint64_t>(start + place));
    const std::uint64_t second = splitmix64(draw);
    const double coin = static_cast<double>(draw >> 32) * kTwoTo32;
    if (place == 0 || coin >= parameters_.repeat) {
      tokens[at] = quantile(second);
      continue;
    }
    std::uint64_t context = splitmix64(lists ^ (static_cast<std::uint64_t>(tokens[at - 1]) + 1));
    const bool two = place > 1 && coin < pair_chance;
    if (two) context = splitmix64(context ^ ((static_cast<std::uint64_t>(tokens[at - 2]) + 1) << 32));
    const std::uint64_t number = successor(draw, second, two ? two_ : one_);
    tokens[at] = quantile(splitmix64(context + splitmix64(number)));
  }
}

void ZipfNgramModel::fill(std::uint64_t seed, std::uint64_t stream, std::int64_t first,
                          std::span<std::int32_t> out) const {
  const std::uint64_t lists = splitmix64(splitmix64(seed) ^ kListsTag);
  const std::uint64_t base = splitmix64(splitmix64(seed) ^ splitmix64(stream + 1));
  const std::int64_t end = first + std::ssize(out);
  std::array<std::int32_t, kSegment> tokens{};
  for (std::int64_t position = first; position < end;) {
    const std::int64_t start = position / kSegment * kSegment;
    const std::int64_t stop = std::min<std::int64_t>(start + kSegment, end);
    segment(lists, base, start, static_cast<int>(stop - start), tokens);
    std::copy(tokens.begin() + (position - start), tokens.begin() + (stop - start), out.begin() + (position - first));
    position = stop;
  }
}

}  // namespace eb::replay
