// Every byte of a backing is written, and the fast synthetic rows are the reference's.
#include "harness/rank/tables/table_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/engram/content.h"
#include "tests/unit/rank/checkpoint_files.h"

namespace eb::rank {
namespace {

// The shard's tables row by row from the reference, 0 elsewhere.
std::vector<std::uint8_t> wanted_bytes(const engram::Geometry& geometry, const engram::Shard& shard,
                                       const plan::BackingLayout& places, std::uint64_t seed) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(places.bytes), 0);
  const auto weight_bytes = static_cast<std::size_t>(geometry.row_weight_bytes());
  const auto scale_bytes = static_cast<std::size_t>(geometry.row_scale_bytes());
  for (std::size_t l = 0; l < places.layers.size(); ++l) {
    const plan::TablePlace& place = places.layers[l];
    for (std::int64_t r = 0; r < shard.rows[l].count; ++r) {
      auto all = std::span(bytes);
      engram::synthetic_row(
          geometry, seed, geometry.layers[l].layer, shard.rows[l].first + r,
          all.subspan(static_cast<std::size_t>(place.weights_offset + r * place.weight_stride), weight_bytes),
          all.subspan(static_cast<std::size_t>(place.scales_offset + r * place.scale_stride), scale_bytes));
    }
  }
  return bytes;
}

struct Case {
  const char* name;
  const char* preset;
  double scale;
  int shards;
  int shard;
  plan::Layout layout;
  bool bf16;
};

class TableWriter : public ::testing::TestWithParam<Case> {};

TEST_P(TableWriter, WritesEveryByteOfTheBacking) {
  const Case& c = GetParam();
  engram::Model model = engram::preset(c.preset);
  if (c.bf16) {
    model.format = engram::RowFormat::bf16;
    model.block = 0;
  }
  const engram::Geometry geometry = engram::make_geometry(model, c.scale);
  const engram::Shard shard = engram::make_shard(geometry, c.shards, c.shard);
  const plan::BackingLayout places = plan::make_backing_layout(geometry, shard, c.layout);
  // As if pre-touched by somebody with other content.
  std::vector<std::uint8_t> memory(static_cast<std::size_t>(places.bytes), 0xA5);
  std::atomic<int> pieces{0};
  write_tables(*make_synthetic_source(geometry, 11), geometry, shard, c.layout, places,
               reinterpret_cast<std::byte*>(memory.data()), 3, [&] { ++pieces; });
  EXPECT_GT(pieces, 0);
  EXPECT_TRUE(memory == wanted_bytes(geometry, shard, places, 11));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, TableWriter,
    ::testing::Values(Case{"split", "tiny", 1, 1, 0, plan::Layout::split, false},
                      Case{"interleaved", "tiny", 1, 1, 0, plan::Layout::interleaved, false},
                      Case{"tiny_shard", "tiny", 1, 4, 3, plan::Layout::split, false},
                      Case{"v41_split", "deepseek-v4.1-flash", 0.001, 4, 2, plan::Layout::split, false},
                      Case{"v41_interleaved", "deepseek-v4.1-flash", 0.001, 4, 3, plan::Layout::interleaved, false},
                      Case{"bf16_split", "tiny", 1, 2, 1, plan::Layout::split, true},
                      Case{"bf16_interleaved", "tiny", 1, 2, 1, plan::Layout::interleaved, true}),
    [](const auto& info) { return info.param.name; });

TEST(TableWriterCheckpoint, GivesTheSameBytesInBothLayouts) {
  const engram::Geometry geometry = engram::make_geometry(engram::preset("tiny"), 1.0);
  const std::string folder = ::testing::TempDir() + "/writer_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  testing::write_safetensors(folder + "/a.safetensors", testing::layer_tensors(geometry, 0, 3));
  const auto source = make_checkpoint_source(geometry, folder);
  for (const plan::Layout layout : {plan::Layout::split, plan::Layout::interleaved}) {
    const engram::Shard shard = engram::make_shard(geometry, 2, 1);
    const plan::BackingLayout places = plan::make_backing_layout(geometry, shard, layout);
    std::vector<std::uint8_t> memory(static_cast<std::size_t>(places.bytes), 0xA5);
    write_tables(*source, geometry, shard, layout, places, reinterpret_cast<std::byte*>(memory.data()), 2, {});
    EXPECT_TRUE(memory == wanted_bytes(geometry, shard, places, 3));
  }
  std::filesystem::remove_all(folder);
}

TEST(TableWriterErrors, WhatOneThreadThrowsEndsTheLoad) {
  const engram::Geometry geometry = engram::make_geometry(engram::preset("deepseek-v4.1-flash"), 0.001);
  const engram::Shard shard = engram::make_shard(geometry, 1, 0);
  const plan::BackingLayout places = plan::make_backing_layout(geometry, shard, plan::Layout::split);
  const Mapping memory = Mapping::anonymous(static_cast<std::size_t>(places.bytes), "test");
  std::atomic<int> pieces{0};
  const auto stop_at_third = [&] {
    if (++pieces == 3) fail(Exit::failure, "no more");
  };
  EXPECT_THROW(write_tables(*make_synthetic_source(geometry, 1), geometry, shard, plan::Layout::split, places,
                            memory.data(), 2, stop_at_third),
               Error);
  EXPECT_LT(pieces, 8);  // of about 50
}

}  // namespace
}  // namespace eb::rank
