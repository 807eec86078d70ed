#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/replay/token_model.h"
#include "tests/unit/error_of.h"

namespace eb::replay {
namespace {

using eb::test::error_of;

using Ids = std::vector<std::int32_t>;

class TokenFile : public testing::Test {
 protected:
  TokenFile() : folder_(std::filesystem::temp_directory_path() / ("token_file_test." + std::to_string(::getpid()))) {
    std::filesystem::create_directory(folder_);
  }
  ~TokenFile() override { std::filesystem::remove_all(folder_); }

  std::string text(const std::string& name, const std::string& content) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }
  std::string binary(const std::string& name, const std::vector<std::uint32_t>& ids) const {
    std::string bytes;
    for (const std::uint32_t id : ids) {
      for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(id >> shift);
    }
    return text(name, bytes);
  }

  std::filesystem::path folder_;
};

engram::Model small() {
  engram::Model model = engram::preset("tiny");
  model.raw_vocab = 4;
  model.compressed_vocab = 3;
  model.pad_token = 3;
  return model;
}

TEST_F(TokenFile, ReadsLittleEndianIds) {
  EXPECT_EQ(read_token_file(binary("a.u32", {0, 258, 129'279})), (Ids{0, 258, 129'279}));
}

TEST_F(TokenFile, RefusesWhatIsNoTokenFile) {
  EXPECT_NE(error_of(Exit::usage, [&] { (void)read_token_file(binary("e.u32", {})); }).find("it is empty"),
            std::string::npos);
  EXPECT_NE(error_of(Exit::usage, [&] { (void)read_token_file(text("odd.u32", "12345")); }).find("5 bytes"),
            std::string::npos);
  EXPECT_NE(error_of(Exit::usage, [&] { (void)read_token_file((folder_ / "none.u32").string()); }).find("none.u32"),
            std::string::npos);
  EXPECT_NE(error_of(Exit::usage, [&] { (void)read_token_file(folder_.string()); }).find("cannot be read"),
            std::string::npos);
  // 2^32 - 1 must not become the mark of a dead token.
  EXPECT_NE(error_of(Exit::usage,
                     [&] {
                       (void)read_token_file(binary("big.u32", {1, 4'294'967'295U}));
                     })
                .find("4294967295"),
            std::string::npos);
}

TEST_F(TokenFile, MapsFromBinaryAndJson) {
  const Ids raw = {3, 0, 2};
  const Ids expected = {1, 0, 2};
  EXPECT_EQ(read_token_map(binary("m.u32", {0, 1, 2, 1}), small()).compress(raw), expected);
  EXPECT_EQ(read_token_map(text("m.json", "[0, 1, 2, 1]"), small()).compress(raw), expected);
  EXPECT_EQ(read_token_map(text("m", "\n[0,1,2,1]\n"), small()).compress(raw), expected) << "known by its brackets";
  EXPECT_EQ(read_token_map(text("m.json", "[0, 1, 2, 1]"), small()).pad_compressed(), 1);
  EXPECT_EQ(read_token_map("identity", engram::preset("tiny")).compress(Ids{31}), Ids{31});
}

TEST_F(TokenFile, RefusesMapsThatDoNotFitTheModel) {
  const auto of = [&](const std::string& content) {
    const std::string path = text("bad.json", content);
    const std::string error = error_of(Exit::usage, [&] { (void)read_token_map(path, small()); });
    EXPECT_NE(error.find("bad.json"), std::string::npos) << error;
    return error;
  };
  EXPECT_NE(of("[0, 1, 3, 1]").find("raw id 2 maps to 3"), std::string::npos);
  EXPECT_NE(of("[0, 1, 1]").find("3 entries"), std::string::npos);
  EXPECT_NE(of("[0, 1, -1, 1]").find("entry 2"), std::string::npos);
  EXPECT_NE(of("[0, 1, 1.5, 1]").find("entry 2"), std::string::npos);
  EXPECT_NE(of("{}").find("JSON list"), std::string::npos);
  EXPECT_NE(of("[0, 1").find("parse error"), std::string::npos);
}

plan::TokenSpec spec_of(plan::TokenKind kind) {
  plan::TokenSpec spec;
  spec.kind = kind;
  return spec;
}

Ids take(const TokenModel& model, std::uint64_t seed, std::uint64_t stream, std::int64_t first, std::size_t count) {
  Ids out(count);
  model.fill(seed, stream, first, out);
  return out;
}

TEST_F(TokenFile, FileStreamsWrap) {
  plan::TokenSpec spec = spec_of(plan::TokenKind::file);
  spec.file = binary("t.u32", {0, 1, 2, 0, 2});
  const auto model = make_token_model(spec, engram::preset("tiny"));
  const Ids two_rounds = take(*model, 1, 0, 0, 10);
  EXPECT_EQ(Ids(two_rounds.begin(), two_rounds.begin() + 5), Ids(two_rounds.begin() + 5, two_rounds.end()));
  EXPECT_EQ(take(*model, 1, 0, 7, 2), Ids(two_rounds.begin() + 7, two_rounds.begin() + 9));
  EXPECT_EQ(take(*model, 1, 0, 5'000'000'000, 10), two_rounds) << "positions beyond int32";
}

TEST_F(TokenFile, ModelErrorsNameTheirSource) {
  plan::TokenSpec file = spec_of(plan::TokenKind::file);
  EXPECT_NE(error_of(Exit::usage, [&] { (void)make_token_model(file, small()); }).find("workload.tokens.file"),
            std::string::npos);
  file.file = binary("t.u32", {0, 1, 4});
  file.map = text("m.json", "[0, 1, 2, 1]");
  const std::string error = error_of(Exit::usage, [&] { (void)make_token_model(file, small()); });
  EXPECT_NE(error.find("t.u32"), std::string::npos) << error;
  EXPECT_NE(error.find("token id 4 at position 2 is out of the vocabulary (0..3)"), std::string::npos) << error;
  plan::TokenSpec constant = spec_of(plan::TokenKind::constant);
  constant.constant = 4;
  constant.map = file.map;
  EXPECT_NE(error_of(Exit::usage, [&] { (void)make_token_model(constant, small()); }).find("token id 4"),
            std::string::npos);
  constant.constant = 3;
  EXPECT_EQ(take(*make_token_model(constant, small()), 1, 2, 3, 4), (Ids{1, 1, 1, 1})) << "as its compressed id";
}

}  // namespace
}  // namespace eb::replay
