// Checkpoints: what is read is what was written, and what does not fit names tensor and file.
#include "harness/rank/tables/checkpoint.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "harness/base/error.h"
#include "harness/rank/tables/row_reference.h"
#include "tests/unit/rank/checkpoint_files.h"

namespace eb::rank {
namespace {

using eb::rank::testing::FileTensor;
using eb::rank::testing::layer_tensors;
using eb::rank::testing::write_safetensors;

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/checkpoint_" + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    geometry_ = engram::make_geometry(engram::preset("tiny"), 1.0);
    tensors_ = layer_tensors(geometry_, 0, 7);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Two files, as a real checkpoint has several.
  void write() {
    write_safetensors(folder_ + "/model-00001-of-00002.safetensors", {tensors_.begin(), tensors_.begin() + 2});
    write_safetensors(folder_ + "/model-00002-of-00002.safetensors", {tensors_.begin() + 2, tensors_.end()});
  }

  void expect_refused(const std::vector<std::string>& parts, Exit exit = Exit::bad_data) {
    try {
      (void)Checkpoint(folder_, geometry_);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
      EXPECT_EQ(error.exit(), exit);
    }
  }

  std::string folder_;
  engram::Geometry geometry_;
  std::vector<FileTensor> tensors_;
};

TEST_F(CheckpointTest, RowsAndWeightsAreThoseOfTheFiles) {
  write();
  const auto reference = make_checkpoint_reference(geometry_, folder_);
  const auto synthetic = make_synthetic_reference(geometry_, 7);
  std::vector<std::uint8_t> weights(64), scales(2), wanted_weights(64), wanted_scales(2);
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{96}, geometry_.layers[0].rows - 1}) {
    reference->row(0, row, weights, scales);
    synthetic->row(0, row, wanted_weights, wanted_scales);
    EXPECT_EQ(weights, wanted_weights);
    EXPECT_EQ(scales, wanted_scales);
  }
  std::vector<Bf16> q(3);
  reference->weights("layers.0.engram.q_weight", 64, 2, q);
  EXPECT_EQ(q[0].bits, tensors_[4].data[4] | tensors_[4].data[5] << 8);
}

TEST_F(CheckpointTest, WkvIsDequantisedByItsBlock) {
  write();
  const Checkpoint checkpoint(folder_, geometry_);
  const std::int64_t k = geometry_.columns * 64;
  // A range that starts inside a row and ends in another block row.
  const std::int64_t first = 31 * k + 5;
  std::vector<Bf16> out(static_cast<std::size_t>(2 * k));
  checkpoint.weights("layers.0.engram.wkv.weight", first, out);
  const std::int64_t blocks = k / 32;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t element = first + static_cast<std::int64_t>(i);
    const auto block = static_cast<std::size_t>(element / k / 32 * blocks + element % k / 32);
    const float wanted = engram::e4m3_to_float(tensors_[2].data[static_cast<std::size_t>(element)]) *
                         engram::ue8m0_to_float(tensors_[3].data[block]);
    ASSERT_EQ(out[i], to_bf16(wanted)) << "element " << element;
  }
}

TEST_F(CheckpointTest, WrongDtypeNamesTensorAndFile) {
  tensors_[0].dtype = "U8";
  write();
  expect_refused({"layers.0.engram.embed.weight", "model-00001-of-00002.safetensors", "dtype U8", "F8_E4M3"});
}

TEST_F(CheckpointTest, WrongShapeNamesTensorAndFile) {
  tensors_[4].shape = {geometry_.model.hidden, geometry_.model.hc_mult};
  write();
  expect_refused({"layers.0.engram.q_weight", "model-00002-of-00002.safetensors", "shape [64, 2]", "[2, 64]"});
}

TEST_F(CheckpointTest, WrongRowSumNamesBothFigures) {
  for (int i = 0; i < 2; ++i) {
    auto& tensor = tensors_[static_cast<std::size_t>(i)];
    const auto row = tensor.data.size() / static_cast<std::size_t>(tensor.shape[0]);
    tensor.shape[0] -= 1;
    tensor.data.resize(tensor.data.size() - row);
  }
  write();
  expect_refused({"layers.0.engram.embed.weight", "model-00001", std::to_string(geometry_.layers[0].rows),
                  std::to_string(geometry_.layers[0].rows - 1)});
}

TEST_F(CheckpointTest, TruncatedFileNamesTheTensor) {
  write();
  const std::string path = folder_ + "/model-00001-of-00002.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  expect_refused({"layers.0.engram.embed.scale", "model-00001-of-00002.safetensors", "truncated"});
}

TEST_F(CheckpointTest, MissingTensorAndTensorInTwoFiles) {
  write();
  std::filesystem::remove(folder_ + "/model-00002-of-00002.safetensors");
  expect_refused({"layers.0.engram.wkv.weight", folder_, "missing"});
  write();
  write_safetensors(folder_ + "/model-00003.safetensors", {tensors_[0]});
  expect_refused({"layers.0.engram.embed.weight", "model-00001", "model-00003", "also"});
}

TEST_F(CheckpointTest, FolderWithoutFiles) {
  expect_refused({folder_, "no *.safetensors"}, Exit::failure);
  folder_ += "/nowhere";
  expect_refused({folder_, "No such file"}, Exit::failure);
}

}  // namespace
}  // namespace eb::rank
