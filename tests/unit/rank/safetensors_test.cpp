// The safetensors parser: what is right is read, what is wrong is an error that names file and tensor.
#include "harness/rank/tables/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "harness/base/error.h"

namespace eb::rank {
namespace {

std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(data_bytes, 'd');
}

std::vector<TensorInfo> parse(const std::string& header, std::size_t data_bytes) {
  const std::string file = file_of(header, data_bytes);
  return parse_safetensors(file, file.size(), "x.safetensors");
}

void expect_refused(const std::string& header, std::size_t data_bytes, const std::string& part) {
  try {
    (void)parse(header, data_bytes);
    ADD_FAILURE() << "accepted: " << header;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("x.safetensors"), std::string::npos) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(error.exit(), Exit::bad_data);
  }
}

constexpr const char* kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})";

TEST(Safetensors, ReadsTensorsInFileOrder) {
  const auto tensors = parse(kGood, 16);
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].shape, (std::vector<std::uint64_t>{2, 3}));
  const std::uint64_t data = 8 + std::string(kGood).size();
  EXPECT_EQ(tensors[1].begin, data + 4);
  EXPECT_EQ(tensors[1].end, data + 16);
}

TEST(Safetensors, TruncatedFileNamesTheTensorThatIsCut) {
  expect_refused(kGood, 15, "tensor b: truncated");
  expect_refused(kGood, 3, "truncated");
}

TEST(Safetensors, RefusesBytesThatBelongToNoTensor) {
  expect_refused(kGood, 17, "behind the last tensor b");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "belong to no tensor");
}

TEST(Safetensors, RefusesOverlap) {
  expect_refused(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6,
      "tensor b overlaps tensor a");
}

TEST(Safetensors, RefusesShapeThatDoesNotMatchItsRange) {
  expect_refused(R"({"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,4]}})", 4, "tensor a");
  expect_refused(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "overflows");
}

TEST(Safetensors, RefusesMalformedHeaders) {
  expect_refused("{", 0, "no JSON");
  expect_refused("[]", 0, "no JSON object");
  expect_refused(R"({"a":7})", 0, "tensor a");
  expect_refused(R"({"a":{"shape":[],"data_offsets":[0,0]}})", 0, "dtype");
  expect_refused(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})", 0, "shape");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,0]}})", 0, "shape");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "no range");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "no range");
  expect_refused(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],)"
                 R"("data_offsets":[0,0]}})",
                 0, "twice");
}

TEST(Safetensors, RefusesDeepNestingWithoutBuildingIt) {
  std::string deep = R"({"a":)";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  for (int i = 0; i < 100'000; ++i) deep += ']';
  expect_refused(deep + "}", 0, "too deep");
}

TEST(Safetensors, RefusesAbsurdHeaderLengths) {
  std::string file(8, '\xff');
  EXPECT_THROW((void)parse_safetensors(file, file.size(), "x"), Error);
  file = file_of("{}", 0);
  EXPECT_THROW((void)parse_safetensors(file, 9, "x"), Error);  // the header is cut off
  EXPECT_THROW((void)parse_safetensors("abc", 3, "x"), Error);
  EXPECT_TRUE(parse_safetensors(file, file.size(), "x").empty());
}

TEST(Safetensors, UnknownDtypeOfAnotherTensorIsNoError) {
  const auto tensors = parse(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2);
  EXPECT_EQ(tensors[0].bytes(), 2U);
}

TEST(SafetensorsFile, ReadsRangesAndRefusesThoseOutside) {
  const std::string path = testing::TempDir() + "/ranges.safetensors";
  std::string file = file_of(kGood, 0);
  for (char c = 0; c < 16; ++c) file += c;
  std::ofstream(path, std::ios::binary) << file;
  const SafetensorsFile opened(path);
  std::vector<std::uint8_t> out(5);
  opened.read(opened.tensors()[1], 3, out);
  EXPECT_EQ(out, (std::vector<std::uint8_t>{7, 8, 9, 10, 11}));
  EXPECT_THROW(opened.read(opened.tensors()[1], 8, out), Error);
  ::unlink(path.c_str());
  EXPECT_THROW(SafetensorsFile("/nowhere/x.safetensors"), Error);
}

}  // namespace
}  // namespace eb::rank
