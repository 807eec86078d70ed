#include "harness/rank/step/step_facts.h"

#include <gtest/gtest.h>

#include "harness/base/os.h"
#include "harness/rank/step/step_shape.h"
#include "tests/unit/rank/step_fixture.h"

namespace eb::rank::test {
namespace {

// Rows of 64 + 2 bytes. Heads of 97, 101, ... rows; shard 0 of 4 has columns 0 and 1: rows 0..197.
class StepReuse : public testing::Test {
 protected:
  StepReuse()
      : scenario(tiny(1, 4, plan::TableMode::dp_sharded)), geometry(engram::make_geometry(scenario.model.base, 1.0)) {
    shard = engram::make_shard(geometry, 4, 0);
    // Token 0: rows 0 and 97. Token 1: row 0 again, and 1 (by a column whose id is any). Token 2: padding.
    ids.assign(3 * 8, engram::kDeadId);
    ids[0] = 0;
    ids[1] = 97;
    ids[2] = 198;  // another shard's column
    ids[8] = 0;
    ids[9] = 1;
  }
  plan::Scenario scenario;
  engram::Geometry geometry;
  engram::Shard shard;
  std::vector<std::int32_t> ids;
};

TEST_F(StepReuse, SplitLayoutCountsWeightsAndScalesApart) {
  const Reuse reuse = count_reuse(geometry, shard, plan::Layout::split, ids, 0);
  EXPECT_EQ(reuse.rows, 4);
  EXPECT_EQ(reuse.unique_rows, 3);
  // Weights: rows 0, 1 at bytes 0..127 and row 97 at 6208..6271: pages 0 and 1, sectors 0-3 and 194, 195. Scales behind
  // 198 * 64 = 12672 bytes of weights, from page 4 on: bytes 0..3 and 194, 195: sectors 0 and 6 of page 4.
  EXPECT_EQ(reuse.unique_pages, 3);
  EXPECT_EQ(reuse.unique_sectors, 8);
}

TEST_F(StepReuse, InterleavedLayoutCountsWholeRows) {
  const Reuse reuse = count_reuse(geometry, shard, plan::Layout::interleaved, ids, 0);
  EXPECT_EQ(reuse.unique_rows, 3);
  // Stride 80: row 0 at 0..65, row 1 at 80..145: sectors 0-4; row 97 at 7760..7825: sectors 242-244; pages 0 and 1.
  EXPECT_EQ(reuse.unique_pages, 2);
  EXPECT_EQ(reuse.unique_sectors, 8);
}

TEST(StepFacts, CountsOfASlot) {
  StepRun run;
  run.scenario = tiny(2, 1, plan::TableMode::private_, 7, 1);
  run.scenario.workload.batches = {batch({6}, 0), batch({}, 3)};
  run.scenario.prefetch.grid_cap.kind = plan::GridCap::Kind::programs;
  run.scenario.prefetch.grid_cap.value = 1;
  run.slots = {timed_slot(4)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  const nlohmann::json& facts = ranks[1].facts.at(0);
  EXPECT_EQ(facts["steps"], 4);
  EXPECT_EQ(facts["own_tokens"], 18);
  EXPECT_EQ(facts["common_slot_tokens"], 18);
  EXPECT_EQ(facts["padded_share"], 0.0);
  EXPECT_FALSE(facts.contains("checks"));
  EXPECT_FALSE(facts.contains("digests"));
  const nlohmann::json& lookup = facts["lookups"].at(0);
  EXPECT_EQ(lookup["layer"], 0);
  EXPECT_EQ(lookup["rows"], 18 * 4);  // 3 heads and a padded one
  EXPECT_EQ(lookup["rows_per_step_max"], 24);
  EXPECT_EQ(lookup["tiles_max"], 2);
  EXPECT_EQ(lookup["grid_max"], 1);
  EXPECT_EQ(lookup["grid_cap"], 1);
  EXPECT_EQ(lookup["rows_last_step"], 3 * 3);
  EXPECT_EQ(lookup["source_bytes"], 18 * 3 * 66);
  EXPECT_EQ(lookup["staging_bytes"], 18 * 4 * 64 * 2);
  ASSERT_EQ(facts["collectives"].size(), 2U);
  EXPECT_EQ(facts["collectives"][0]["object"], "heads");
  EXPECT_EQ(facts["collectives"][0]["calls"], 4);
  EXPECT_EQ(facts["collectives"][0]["bytes"], 18 * 4 * 64 * 2);
  EXPECT_EQ(facts["collectives"][1]["object"], "wkv_output");
  EXPECT_EQ(facts["collectives"][1]["bytes"], 18 * 96 * 2);  // (2 + 1) * 64 outputs over two ranks
  EXPECT_EQ(facts["threads"], 1 + 1 + 2);
}

TEST(StepShapeTest, BackboneWorkFollowsTheStatedFlops) {
  plan::Scenario scenario = tiny(2, 1, plan::TableMode::private_);
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, 1.0);
  const auto shape = [&] { return make_shape(scenario, plan::make_layout(scenario, geometry), geometry, 0); };
  EXPECT_EQ(shape().backbone_n, 24);  // 6144 bytes / (2 ranks * 2 * 64)
  EXPECT_EQ(shape().backbone_repeats, 1);
  scenario.model.backbone.flops_per_token_per_layer *= 3;
  EXPECT_EQ(shape().backbone_repeats, 3);
  scenario.model.backbone.scale = 0.001;
  EXPECT_EQ(shape().backbone_n, 1) << "never nothing where something is stated";
  scenario.model.backbone.weight_bytes_per_layer = 0;
  EXPECT_EQ(shape().backbone_n, 0);
}

TEST(StepShapeTest, WindowsOfSequenceParallelism) {
  plan::Scenario scenario = tiny(4, 1, plan::TableMode::private_);
  scenario.parallel.sequence_parallel = true;
  scenario.workload.batches = {batch({5}, 0)};
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, 1.0);
  const plan::RunLayout layout = plan::make_layout(scenario, geometry);
  const std::vector<std::int64_t> valid = {2, 2, 1, 0};
  for (int rank = 0; rank < 4; ++rank) {
    const StepTokens tokens = step_tokens(make_shape(scenario, layout, geometry, rank), scenario.workload, 0);
    EXPECT_EQ(tokens.window, 2);
    EXPECT_EQ(tokens.padded, 8);
    EXPECT_EQ(tokens.window_first, 2 * rank);
    EXPECT_EQ(tokens.window_valid, valid[static_cast<std::size_t>(rank)]);
  }
}

TEST(RunGroups, AreTheSameEverywhereAndLeaveSingleRanksOut) {
  const plan::Scenario scenario = tiny(2, 2, plan::TableMode::dp_sharded);
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, 1.0);
  const auto groups = run_groups(plan::make_layout(scenario, geometry));
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].name, "tp");
  EXPECT_EQ(groups[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(groups[3].name, "edp");
  EXPECT_EQ(groups[3].ranks, (std::vector<int>{1, 3}));
  EXPECT_TRUE(run_groups(plan::make_layout(tiny(1, 1, plan::TableMode::private_), geometry)).empty());
}

}  // namespace
}  // namespace eb::rank::test
