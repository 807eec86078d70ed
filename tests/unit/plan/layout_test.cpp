#include "harness/plan/layout.h"

#include <gtest/gtest.h>

#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::plan {
namespace {

Scenario tiny(int tp, int dp, TableMode mode) {
  Scenario scenario;
  scenario.model.base = engram::preset("tiny");
  scenario.parallel.tp = tp;
  scenario.parallel.dp = dp;
  scenario.parallel.table_mode = mode;
  return scenario;
}

RunLayout layout_of(const Scenario& scenario) {
  return make_layout(scenario, engram::make_geometry(scenario.model.base, scenario.model.table_scale));
}

TEST(Layout, SharedTwoByTwoHasOneBackingAShard) {
  const RunLayout layout = layout_of(tiny(2, 2, TableMode::shared));
  EXPECT_EQ(layout.edp_group_size, 2);
  ASSERT_EQ(layout.backings.size(), 2u);
  EXPECT_EQ(layout.backings[0].readers, (std::vector<int>{0, 2}));
  EXPECT_EQ(layout.backings[1].readers, (std::vector<int>{1, 3}));
  EXPECT_EQ(layout.edp_groups, (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(layout.tp_groups, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  EXPECT_TRUE(layout.ep_groups.empty());
  EXPECT_TRUE(layout.ranks[1].backing_leader);
  EXPECT_FALSE(layout.ranks[3].backing_leader);
  EXPECT_EQ(layout.ranks[3].shard.first_column, 4);
}

TEST(Layout, PrivateHasABackingARank) {
  const RunLayout layout = layout_of(tiny(2, 2, TableMode::private_));
  EXPECT_EQ(layout.edp_group_size, 1);
  ASSERT_EQ(layout.backings.size(), 4u);
  for (const RankPlace& place : layout.ranks) {
    EXPECT_TRUE(place.backing_leader);
    EXPECT_EQ(layout.backings[static_cast<std::size_t>(place.backing)].readers, std::vector<int>{place.rank});
  }
}

TEST(Layout, DpShardedNumbersShardsTpMajor) {
  const RunLayout layout = layout_of(tiny(2, 2, TableMode::dp_sharded));
  ASSERT_EQ(layout.backings.size(), 4u);
  // tp_rank * edp + edp_rank: ranks 0..3 are (dp 0, tp 0), (dp 0, tp 1), (dp 1, tp 0), (dp 1, tp 1).
  const std::vector<int> shards{0, 2, 1, 3};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(layout.ranks[rank].shard.shards, 4);
    EXPECT_EQ(layout.ranks[rank].shard.index, shards[rank]) << "rank " << rank;
  }
}

TEST(Layout, EpGroupsAreConsecutiveReplicasOfOneTpRank) {
  Scenario scenario = tiny(2, 4, TableMode::shared);
  scenario.parallel.ep = 2;
  EXPECT_EQ(layout_of(scenario).ep_groups, (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

TEST(Layout, RefusesModesWithoutPeers) {
  EXPECT_THROW(static_cast<void>(layout_of(tiny(2, 1, TableMode::shared))), Error);
  EXPECT_THROW(static_cast<void>(layout_of(tiny(2, 1, TableMode::dp_sharded))), Error);
  EXPECT_NO_THROW(static_cast<void>(layout_of(tiny(2, 1, TableMode::private_))));
}

TEST(BackingLayout, ArraysStartOnPagesAndDoNotOverlap) {
  const engram::Geometry geometry = engram::make_geometry(engram::preset("deepseek-v4.1-flash"), 0.001);
  const auto page = static_cast<std::int64_t>(page_bytes());
  for (int index = 0; index < 3; ++index) {
    const engram::Shard shard = engram::make_shard(geometry, 3, index);
    const BackingLayout backing = make_backing_layout(geometry, shard, Layout::split);
    ASSERT_EQ(backing.layers.size(), 2u);
    std::int64_t end = 0;
    for (std::size_t l = 0; l < 2; ++l) {
      const TablePlace& place = backing.layers[l];
      const std::int64_t rows = shard.rows[l].count;
      EXPECT_EQ(place.weights_offset, end);
      EXPECT_EQ(place.weights_offset % page, 0);
      EXPECT_EQ(place.scales_offset % page, 0);
      EXPECT_GE(place.scales_offset, place.weights_offset + rows * 256);
      EXPECT_EQ(place.weight_stride, 256);
      EXPECT_EQ(place.scale_stride, 8);
      end = place.weights_offset + place.bytes;
      EXPECT_GE(end, place.scales_offset + rows * 8);
      EXPECT_LT(end, place.scales_offset + rows * 8 + page);
    }
    EXPECT_EQ(backing.bytes, end);
  }
}

TEST(BackingLayout, InterleavedPutsScalesBehindTheirRow) {
  const engram::Geometry geometry = engram::make_geometry(engram::preset("deepseek-v4.1-flash"), 0.001);
  const engram::Shard shard = engram::make_shard(geometry, 2, 1);
  const BackingLayout backing = make_backing_layout(geometry, shard, Layout::interleaved);
  for (std::size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(backing.layers[l].weight_stride, 272);
    EXPECT_EQ(backing.layers[l].scale_stride, 272);
    EXPECT_EQ(backing.layers[l].scales_offset, backing.layers[l].weights_offset + 256);
    EXPECT_GE(backing.layers[l].bytes, shard.rows[l].count * 272);
  }
}

// Only the end moves: arrays lie as in pages of 4 KiB, and the last layer reaches to the end.
TEST(BackingLayout, HugePagesRoundTheWholeUp) {
  const engram::Geometry geometry = engram::make_geometry(engram::preset("deepseek-v4.1-flash"), 0.001);
  const engram::Shard shard = engram::make_shard(geometry, 2, 1);
  const BackingLayout plain = make_backing_layout(geometry, shard, Layout::split);
  for (const Backing backing : {Backing::hugetlb_2m, Backing::shm_thp, Backing::hugetlb_1g}) {
    StorageSpec storage;
    storage.backing = backing;
    const BackingLayout huge = make_backing_layout(geometry, shard, storage);
    EXPECT_EQ(huge.bytes % unit_bytes(backing), 0);
    EXPECT_GE(huge.bytes, plain.bytes);
    EXPECT_LT(huge.bytes, plain.bytes + unit_bytes(backing));
    EXPECT_EQ(huge.layers[1].scales_offset, plain.layers[1].scales_offset);
    EXPECT_EQ(huge.layers[0].bytes, plain.layers[0].bytes);
    EXPECT_EQ(huge.layers[1].weights_offset + huge.layers[1].bytes, huge.bytes);
  }
}

// 188.8 GiB of tables take 264 GiB, as the ledger says.
TEST(BackingLayout, PinnedRoundingTakesThePowerOfTwoOfEachArray) {
  const engram::Geometry geometry = engram::make_geometry(engram::preset("deepseek-v4.1-flash"), 1.0);
  StorageSpec storage;
  storage.backing = Backing::anon;
  storage.pinned_rounding = PinnedRounding::power_of_two;
  const BackingLayout backing = make_backing_layout(geometry, engram::make_shard(geometry, 1, 0), storage);
  EXPECT_EQ(backing.bytes, std::int64_t{264} << 30);
  EXPECT_EQ(backing.layers[0].scales_offset, std::int64_t{128} << 30);
  EXPECT_EQ(backing.layers[1].weights_offset, std::int64_t{132} << 30);
}

}  // namespace
}  // namespace eb::plan
