#include "harness/engram/token_map.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/base/error.h"
#include "tests/unit/error_of.h"

namespace eb::engram {
namespace {

using eb::test::error_of;

using Ids = std::vector<std::int32_t>;

Model small() {
  Model model = preset("tiny");
  model.raw_vocab = 5;
  model.compressed_vocab = 3;
  model.pad_token = 4;
  return model;
}

TEST(TokenMap, MapsAndKeepsDeadTokens) {
  const TokenMap map = TokenMap::from_table(small(), {0, 1, 0, 2, 1});
  EXPECT_EQ(map.compress(Ids{3, kDeadToken, 2, 4}), (Ids{2, kDeadToken, 0, 1}));
  EXPECT_EQ(map.pad_compressed(), 1) << "the pad token hashes as its compressed id";
}

TEST(TokenMap, IdOutOfTheVocabulary) {
  const TokenMap map = TokenMap::from_table(small(), {0, 1, 0, 2, 1});
  EXPECT_EQ(error_of(Exit::usage,
                     [&] {
                       (void)map.compress(Ids{1, 5});
                     }),
            "token id 5 at position 1 is out of the vocabulary (0..4)");
  EXPECT_EQ(error_of(Exit::usage, [&] { (void)map.compress(Ids{-2}); }),
            "token id -2 at position 0 is out of the vocabulary (0..4)");
}

TEST(TokenMap, MappedIdAtTheCompressedVocabulary) {
  const std::string text = error_of(Exit::usage, [] { (void)TokenMap::from_table(small(), {0, 1, 0, 3, 1}); });
  EXPECT_NE(text.find("raw id 3 maps to 3"), std::string::npos) << text;
  EXPECT_NE(error_of(Exit::usage,
                     [] {
                       (void)TokenMap::from_table(small(), {0, 1});
                     }),
            "")
      << "two entries for five ids";
}

TEST(TokenMap, IdentityStopsAtTheCompressedVocabulary) {
  Model model = small();
  model.pad_token = 2;
  const TokenMap map = TokenMap::identity(model);
  EXPECT_EQ(map.compress(Ids{2, 0}), (Ids{2, 0}));
  EXPECT_NE(error_of(Exit::usage, [&] { (void)map.compress(Ids{3}); }).find("compressed vocabulary 3"),
            std::string::npos);
  EXPECT_NE(error_of(Exit::usage, [&] { (void)map.compress(Ids{5}); }).find("out of the vocabulary (0..4)"),
            std::string::npos);
  model.pad_token = 4;
  EXPECT_NE(error_of(Exit::usage, [&] { (void)TokenMap::identity(model); }), "");
}

}  // namespace
}  // namespace eb::engram
