#include "harness/replay/token_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "harness/engram/content.h"
#include "harness/replay/zipf_ngram.h"

namespace eb::replay {
namespace {

using Ids = std::vector<std::int32_t>;

Ids take(const TokenModel& model, std::uint64_t seed, std::uint64_t stream, std::int64_t first, std::size_t count) {
  Ids out(count);
  model.fill(seed, stream, first, out);
  return out;
}

std::shared_ptr<const TokenModel> model_of(plan::TokenKind kind) {
  plan::TokenSpec spec;
  spec.kind = kind;
  return make_token_model(spec, engram::preset("deepseek-v4.1-flash"));
}

class Streams : public testing::TestWithParam<plan::TokenKind> {};

TEST_P(Streams, AreRandomAccessAndNamedBySeedAndNumber) {
  const auto model = model_of(GetParam());
  const Ids whole = take(*model, 3, 9, 0, 500);
  for (const std::size_t first : {0U, 1U, 15U, 16U, 17U, 333U}) {
    for (const std::size_t count : {0U, 1U, 4U, 16U, 60U}) {
      EXPECT_EQ(take(*model, 3, 9, static_cast<std::int64_t>(first), count),
                Ids(whole.begin() + static_cast<std::ptrdiff_t>(first),
                    whole.begin() + static_cast<std::ptrdiff_t>(first + count)));
    }
  }
  EXPECT_NE(take(*model, 3, 10, 0, 500), whole);
  EXPECT_NE(take(*model, 4, 9, 0, 500), whole);
  for (const std::int32_t token : take(*model, 3, 9, 1'000'000'000'000, 1000)) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 99'092);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Streams, testing::Values(plan::TokenKind::uniform, plan::TokenKind::zipf_ngram));

TEST(Uniform, CoversTheVocabularyEvenly) {
  const Ids tokens = take(*model_of(plan::TokenKind::uniform), 1, 0, 0, 100'000);
  double mean = 0;
  for (const std::int32_t token : tokens) mean += token;
  mean /= static_cast<double>(tokens.size());
  EXPECT_NEAR(mean, 99'091 / 2.0, 5 * 99'092 / std::sqrt(12.0 * 100'000));
}

// Golden streams of scripts/fit_token_model.py, whose fit the defaults are.
TEST(ZipfNgram, IsTheModelThatWasFitted) {
  const ZipfNgramParameters parameters{1.1, 3.0, 0.9, 0.5, 0.8, 0.4};
  EXPECT_EQ(take(ZipfNgramModel(parameters, 99'092), 5, 12'345, 0, 40),
            (Ids{450,   9257, 127, 73,    749,   856,   803, 193, 16567, 901, 24749, 10559, 434,  8953,
                 37,    1,    40,  20775, 19803, 27050, 0,   17,  3257,  121, 161,   21,    1856, 307,
                 17783, 61,   0,   18,    22566, 21407, 17,  162, 2093,  12,  317,   30}));
  EXPECT_EQ(take(ZipfNgramModel(parameters, 1'000), (1ULL << 63) + 1, ~1ULL, 0, 20),
            (Ids{4, 2, 42, 1, 0, 20, 143, 336, 113, 16, 21, 0, 8, 66, 60, 26, 17, 7, 42, 33}));
}

double share_of_new(const Ids& tokens, std::size_t size) {
  std::set<std::uint64_t> seen;
  for (std::size_t i = 0; i + size <= tokens.size(); ++i) {
    std::uint64_t key = 0;
    for (std::size_t j = 0; j < size; ++j) key = engram::splitmix64(key ^ static_cast<std::uint64_t>(tokens[i + j]));
    seen.insert(key);
  }
  return static_cast<double>(seen.size()) / static_cast<double>(tokens.size());
}

// The shipped text's curve at 16,384 tokens (docs/token-models.md); far from what independent tokens give.
TEST(ZipfNgram, ReusesRowsAsTheTextDoes) {
  const Ids tokens = take(*model_of(plan::TokenKind::zipf_ngram), 1, 0, 0, 16'384);
  EXPECT_NEAR(share_of_new(tokens, 2), 0.701, 0.05);
  EXPECT_NEAR(share_of_new(tokens, 3), 0.890, 0.05);
  EXPECT_NEAR(share_of_new(tokens, 4), 0.944, 0.05);
}

TEST(ZipfNgram, NgramsRecurAcrossStreams) {
  const auto model = model_of(plan::TokenKind::zipf_ngram);
  Ids many;
  for (std::uint64_t stream = 0; stream < 128; ++stream) {
    const Ids one = take(*model, 1, stream, 0, 128);
    many.insert(many.end(), one.begin(), one.end());
  }
  EXPECT_NEAR(share_of_new(many, 2), share_of_new(take(*model, 1, 0, 0, many.size()), 2), 0.05);
}

TEST(ZipfNgram, ParametersOfTheScenarioCount) {
  plan::TokenSpec spec;
  spec.kind = plan::TokenKind::zipf_ngram;
  spec.repeat_probability = 0.2;
  const auto model = make_token_model(spec, engram::preset("deepseek-v4.1-flash"));
  EXPECT_GT(share_of_new(take(*model, 1, 0, 0, 16'384), 3), 0.95);
  spec.repeat_probability = 0;
  spec.zipf_exponent = 2.0;
  const auto steep = make_token_model(spec, engram::preset("deepseek-v4.1-flash"));
  EXPECT_LT(share_of_new(take(*steep, 1, 0, 0, 16'384), 2), 0.2);
}

}  // namespace
}  // namespace eb::replay
