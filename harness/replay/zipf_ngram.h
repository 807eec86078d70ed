// The token model zipf_ngram: text-like streams in which n-grams recur, by formula instead of from a file.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "harness/replay/token_model.h"

namespace eb::replay {

// Defaults: the fit to the shipped text by scripts/fit_token_model.py; docs/token-models.md shows it.
struct ZipfNgramParameters {
  double exponent = 1.067;  // token of frequency rank r has weight (r + shift)^-exponent, r from 1
  double shift = 1.87;
  double repeat = 0.951;     // chance that a token continues what stands before it
  double pair_share = 0.38;  // of these, the share that looks at two tokens instead of one
  double tail_one = 0.83;    // successor k or later is taken with chance about k^-tail
  double tail_two = 0.415;
};

// Every context (one or two tokens) has an endless list of successors, the same in all streams of a seed; low places of
// the list are taken often, so that n-grams recur within and across streams. Context breaks every kSegment tokens,
// which is what makes the stream random access. A compressed id is its own frequency rank. Immutable after
// construction, so any number of threads may fill at once.
class ZipfNgramModel : public TokenModel {
 public:
  ZipfNgramModel(const ZipfNgramParameters& parameters, std::int64_t vocabulary);
  void fill(std::uint64_t seed, std::uint64_t stream, std::int64_t first, std::span<std::int32_t> out) const override;

 private:
  static constexpr int kSegment = 16;
  static constexpr int kMaxOctave = 30;
  using Thresholds = std::array<double, kMaxOctave>;

  [[nodiscard]] std::int32_t quantile(std::uint64_t draw) const noexcept;
  [[nodiscard]] static std::uint64_t successor(std::uint64_t draw, std::uint64_t place,
                                               const Thresholds& thresholds) noexcept;
  // Tokens 0..count-1 of the segment whose first position is `start`.
  void segment(std::uint64_t lists, std::uint64_t base, std::int64_t start, int count,
               std::array<std::int32_t, kSegment>& tokens) const noexcept;

  ZipfNgramParameters parameters_;
  Thresholds one_{};
  Thresholds two_{};
  std::vector<double> cumulative_;
  std::vector<std::uint32_t> guide_;  // where the search for a quantile begins
};

}  // namespace eb::replay
