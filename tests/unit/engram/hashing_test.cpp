#include "harness/engram/hashing.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <vector>

#include "harness/base/error.h"

namespace eb::engram {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kPad = 2;

const Geometry& flash() {
  static const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 1.0);
  return geometry;
}

// Tokens from a small set so that n-grams recur, with dead stretches.
Ids random_tokens(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Ids tokens(count);
  for (auto& token : tokens) token = random() % 11 == 0 ? kDeadToken : static_cast<std::int32_t>(random() % 99'092);
  return tokens;
}

Ids whole(const Ids& tokens) { return hash_ids(flash(), tokens, {}, kPad); }

std::size_t stride() { return flash().layers.size() * static_cast<std::size_t>(flash().columns); }

// By hand from the definition: no loop of the code under test.
TEST(Hashing, OneTokenByTheFormula) {
  const Geometry& g = flash();
  const Ids tokens = {5, 70'000, 12};
  const Ids ids = whole(tokens);
  for (std::size_t l = 0; l < 2; ++l) {
    const auto& layer = g.layers[l];
    const auto& m = layer.multipliers;
    const std::int64_t two = (12 * m[0]) ^ (70'000 * m[1]);
    const std::int64_t three = two ^ (5 * m[2]);
    const std::int64_t four = three ^ (kPad * m[3]);
    const Ids last(ids.end() - static_cast<std::ptrdiff_t>(stride()), ids.end());
    for (std::size_t h = 0; h < 8; ++h) {
      EXPECT_EQ(last[l * 24 + h], two % layer.head_rows[h] + layer.head_offsets[h]);
      EXPECT_EQ(last[l * 24 + 8 + h], three % layer.head_rows[8 + h] + layer.head_offsets[8 + h]);
      EXPECT_EQ(last[l * 24 + 16 + h], four % layer.head_rows[16 + h] + layer.head_offsets[16 + h]);
    }
  }
}

TEST(Hashing, ADeadTokenBlocksItselfAndAllFartherOnes) {
  const Ids ids = whole({7, kDeadToken, 8, 9});
  const auto at = [&](std::size_t token) {
    return Ids(ids.begin() + static_cast<std::ptrdiff_t>(token * stride()),
               ids.begin() + static_cast<std::ptrdiff_t>((token + 1) * stride()));
  };
  // The dead token itself: the all-pad n-gram, which is what a pad at a request's start hashes to.
  EXPECT_EQ(at(1), whole({kPad}));
  // Tokens behind it see nothing of what lies before it.
  EXPECT_EQ(at(2), whole({8}));
  const Ids pair = whole({8, 9});
  EXPECT_EQ(at(3), Ids(pair.begin() + static_cast<std::ptrdiff_t>(stride()), pair.end()));
}

TEST(Hashing, ChunksGiveTheSameIds) {
  const Ids tokens = random_tokens(200, 1);
  const Ids expected = whole(tokens);
  for (const std::size_t chunk : {1U, 2U, 3U, 5U, 64U, 199U}) {
    Ids ids;
    for (std::size_t first = 0; first < tokens.size(); first += chunk) {
      const std::size_t last = std::min(tokens.size(), first + chunk);
      const auto part =
          hash_ids(flash(), std::span(tokens).subspan(first, last - first), std::span(tokens).first(first), kPad);
      ids.insert(ids.end(), part.begin(), part.end());
    }
    EXPECT_EQ(ids, expected) << "chunks of " << chunk;
  }
}

// A prefix that another request left in the cache is not hashed again; the rest hashes with it as history.
TEST(Hashing, PrefixHitGivesTheSameIds) {
  const Ids tokens = random_tokens(90, 2);
  const Ids expected = whole(tokens);
  for (const std::size_t hit : {1U, 2U, 3U, 16U, 64U, 89U}) {
    const Ids rest = hash_ids(flash(), std::span(tokens).subspan(hit), std::span(tokens).first(hit), kPad);
    EXPECT_EQ(rest, Ids(expected.begin() + static_cast<std::ptrdiff_t>(hit * stride()), expected.end())) << hit;
    // Only the last three tokens of the history matter.
    const std::size_t kept = std::min<std::size_t>(hit, 3);
    EXPECT_EQ(hash_ids(flash(), std::span(tokens).subspan(hit), std::span(tokens).subspan(hit - kept, kept), kPad),
              rest);
  }
}

// Speculated tokens are hashed, some are rejected, the history is rolled back and the right ones follow.
TEST(Hashing, SpeculativeRollBackGivesTheSameIds) {
  const Ids accepted = random_tokens(40, 3);
  const Ids expected = whole(accepted);
  const Ids wrong = random_tokens(40, 4);
  Ids history;
  Ids ids;
  std::size_t done = 0;
  for (std::size_t good = 1; done < accepted.size(); good = good % 4 + 1) {
    Ids draft;
    for (std::size_t i = 0; i < 4; ++i) {
      draft.push_back(i < good && done + i < accepted.size() ? accepted[done + i] : wrong[(done + i) % wrong.size()]);
    }
    const std::size_t kept = std::min(good, accepted.size() - done);
    const Ids step = hash_ids(flash(), draft, history, kPad);
    ids.insert(ids.end(), step.begin(), step.begin() + static_cast<std::ptrdiff_t>(kept * stride()));
    history.insert(history.end(), draft.begin(), draft.end());
    history.resize(history.size() - (draft.size() - kept));  // the roll-back
    done += kept;
  }
  EXPECT_EQ(ids, expected);
}

TEST(Hashing, HeadsOfOneSizeRecurTogether) {
  const Ids ids = whole({4, 5, 6, 4, 5, 6});
  // 2-gram (5,6) recurs at tokens 2 and 5, 4-gram does not.
  for (std::size_t column = 0; column < 16; ++column) EXPECT_EQ(ids[2 * stride() + column], ids[5 * stride() + column]);
  for (std::size_t column = 16; column < 24; ++column)
    EXPECT_NE(ids[2 * stride() + column], ids[5 * stride() + column]);
}

TEST(Hashing, AModelWithoutTwoGramsSkipsThem) {
  Model model = preset("deepseek-v4.1-flash");
  model.ngram_sizes = {2, 4};
  const Geometry g = make_geometry(model, 1.0);
  const Ids ids = hash_ids(g, Ids{1, 2, 3, 4}, {}, kPad);
  ASSERT_EQ(ids.size(), 4U * 2U * 16U);
  const auto& m = g.layers[0].multipliers;
  const std::int64_t four = (4 * m[0]) ^ (3 * m[1]) ^ (2 * m[2]) ^ (1 * m[3]);
  EXPECT_EQ(ids[3 * 32 + 8], four % g.layers[0].head_rows[8] + g.layers[0].head_offsets[8]);
}

TEST(Hashing, RefusesIdsOutsideTheCompressedVocabulary) {
  EXPECT_THROW((void)whole({99'092}), Error);
  EXPECT_THROW((void)whole({-2}), Error);
  EXPECT_THROW((void)hash_ids(flash(), Ids{1}, Ids{99'092}, kPad), Error);
  EXPECT_THROW((void)hash_ids(flash(), Ids{1}, {}, 99'092), Error);
  EXPECT_THROW((void)hash_ids(make_geometry(preset("deepep-default"), 1.0), Ids{0}, {}, 0), Error);
  EXPECT_NO_THROW((void)whole({99'091}));
}

}  // namespace
}  // namespace eb::engram
