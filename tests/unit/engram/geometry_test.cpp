#include "harness/engram/geometry.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "harness/base/error.h"

namespace eb::engram {
namespace {

std::string error_of(const Model& model, double scale) {
  try {
    (void)make_geometry(model, scale);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    return error.what();
  }
  return "";
}

TEST(Geometry, FlashRowsAndPrimesOfBothLayers) {
  const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 1.0);
  ASSERT_EQ(geometry.columns, 24);
  ASSERT_EQ(geometry.layers.size(), 2U);
  const auto& one = geometry.layers[0];
  const auto& fourteen = geometry.layers[1];
  EXPECT_EQ(one.layer, 1);
  EXPECT_EQ(fourteen.layer, 14);
  EXPECT_EQ(one.rows, 384'006'168);
  EXPECT_EQ(fourteen.rows, 384'016'682);
  EXPECT_EQ(one.head_rows[0], 16'000'057);
  EXPECT_EQ(one.head_rows[1], 16'000'079);
  EXPECT_EQ(one.head_rows[2], 16'000'081);
  EXPECT_EQ(fourteen.head_rows[0], 16'000'477);
  EXPECT_EQ(fourteen.head_rows[1], 16'000'487);
  std::set<std::int64_t> all(one.head_rows.begin(), one.head_rows.end());
  all.insert(fourteen.head_rows.begin(), fourteen.head_rows.end());
  EXPECT_EQ(all.size(), 48U) << "a prime serves once";
  for (const auto& layer : geometry.layers) {
    EXPECT_EQ(std::accumulate(layer.head_rows.begin(), layer.head_rows.end(), std::int64_t{0}), layer.rows);
    EXPECT_EQ(layer.head_offsets[0], 0);
    EXPECT_EQ(layer.head_offsets[23] + layer.head_rows[23], layer.rows);
  }
}

TEST(Geometry, FlashMultipliers) {
  const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 1.0);
  EXPECT_EQ(geometry.layers[0].multipliers,
            (std::array<std::int64_t, 4>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ(geometry.layers[1].multipliers,
            (std::array<std::int64_t, 4>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
}

TEST(Geometry, FlashBytes) {
  const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 1.0);
  EXPECT_EQ(geometry.row_weight_bytes(), 256);
  EXPECT_EQ(geometry.row_scale_bytes(), 8);
  EXPECT_EQ(geometry.row_stride(Layout::split), 264);
  EXPECT_EQ(geometry.row_stride(Layout::interleaved), 272);
  EXPECT_EQ(geometry.table_bytes(0, Layout::split), 101'377'628'352);
  EXPECT_EQ(geometry.table_bytes(1, Layout::split), 101'380'404'048);
  EXPECT_EQ(geometry.table_bytes(0, Layout::split) + geometry.table_bytes(1, Layout::split), 202'758'032'400);
  EXPECT_EQ(geometry.table_bytes(0, Layout::interleaved), 384'006'168 * std::int64_t{272});
}

TEST(Geometry, ScaledTableKeepsItsStructure) {
  const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 0.001);
  EXPECT_EQ(geometry.columns, 24);
  EXPECT_EQ(geometry.layers[0].head_rows[0], 16'001);  // the first prime from 16,000 on
  EXPECT_EQ(geometry.layers[0].multipliers[0], 76632096046245) << "multipliers hang on the vocabulary alone";
  // The start never falls below 64.
  EXPECT_EQ(make_geometry(preset("deepseek-v4.1-flash"), 1e-9).layers[0].head_rows[0], 67);
  EXPECT_EQ(make_geometry(preset("deepseek-v4.1-flash"), 64.9 / 16e6).layers[0].head_rows[0], 67);
}

TEST(Geometry, TinyWithEightAndSevenHeads) {
  Model model = preset("tiny");
  const Geometry eight = make_geometry(model, 1.0);
  EXPECT_EQ(eight.columns, 8);
  EXPECT_EQ(eight.layers[0].layer, 0);
  EXPECT_EQ(eight.layers[0].rows, 888);
  EXPECT_EQ(eight.row_stride(Layout::split), 66);
  EXPECT_EQ(eight.row_stride(Layout::interleaved), 80);
  model.heads_per_ngram = 7;
  const Geometry seven = make_geometry(model, 1.0);
  EXPECT_EQ(seven.columns, 7);
  EXPECT_EQ(seven.layers[0].rows, 757);
  EXPECT_EQ(seven.layers[0].head_rows.back(), 127);
}

TEST(Geometry, DeepepRowsArePlainBf16) {
  const Geometry geometry = make_geometry(preset("deepep-default"), 1.0);
  EXPECT_EQ(geometry.columns, 24);
  EXPECT_EQ(geometry.layers[0].rows, 524'288);
  EXPECT_EQ(geometry.row_weight_bytes(), 256);
  EXPECT_EQ(geometry.row_scale_bytes(), 0);
  EXPECT_EQ(geometry.row_stride(Layout::interleaved), 256);
}

TEST(Geometry, UnknownPresetNamesTheNearest) {
  try {
    (void)preset("deepseek-v4-flash");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("did you mean 'deepseek-v4.1-flash'"), std::string::npos) << error.what();
  }
}

TEST(Geometry, RefusesModelsOutOfRange) {
  const Model flash = preset("deepseek-v4.1-flash");
  const Model small = preset("tiny");
  EXPECT_EQ(error_of(flash, 1.0), "");
  const auto bad = [&](auto change, const Model& base) {
    Model model = base;
    change(model);
    return error_of(model, 1.0);
  };
  EXPECT_NE(bad([](Model& m) { m.layers.clear(); }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.layers = {14, 1}; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.layers = {1, 1}; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.ngram_sizes = {1, 2}; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.ngram_sizes = {2, 5}; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.heads_per_ngram = 0; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.heads_per_ngram = 22; }, flash), "") << "66 columns";
  EXPECT_NE(bad([](Model& m) { m.dim = 200; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.block = 0; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.block = 48; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.format = RowFormat::bf16; }, flash), "") << "bf16 rows with a block";
  EXPECT_NE(bad([](Model& m) { m.compressed_vocab = 0; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.pad_token = 200'000; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.hidden = 0; }, flash), "");
  EXPECT_NE(bad([](Model& m) { m.heads_per_ngram = 9; }, small), "") << "nine heads, eight sizes given";
  EXPECT_NE(error_of(flash, 0.0), "");
  EXPECT_NE(error_of(flash, -1.0), "");
  EXPECT_NE(error_of(flash, 6.0).find("int32"), std::string::npos) << "2.3 billion rows";
  EXPECT_NE(error_of(small, 0.5).find("head_rows"), std::string::npos) << "no prime search to scale";
}

}  // namespace
}  // namespace eb::engram
