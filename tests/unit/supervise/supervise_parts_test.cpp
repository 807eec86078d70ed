// The pure parts of the supervisor: which node a rank gets, how much memory a re-roll needs, what stops a plan.
#include <gtest/gtest.h>

#include "harness/base/error.h"
#include "harness/supervise/binding.h"
#include "harness/supervise/memory_need.h"
#include "harness/supervise/reroll.h"

namespace eb::supervise {
namespace {

plan::Scenario tiny(int tp, int dp) {
  plan::Scenario scenario;
  scenario.model.base = engram::preset("tiny");
  scenario.model.backbone.layers = 1;
  scenario.parallel.tp = tp;
  scenario.parallel.dp = dp;
  scenario.workload.batches = {plan::Batch{{4}, 2, -1}};
  return scenario;
}

plan::RunLayout layout_of(const plan::Scenario& scenario) {
  return plan::make_layout(scenario, engram::make_geometry(scenario.model.base, scenario.model.table_scale));
}

const placement::Topology& two_nodes() {
  static const placement::Topology topology = placement::synthetic_topology("pack:2 numa:1 core:4 pu:1");
  return topology;
}

TEST(Binding, DefaultDealsRanksOutInContiguousParts) {
  const plan::Scenario scenario = tiny(2, 2);
  const auto bindings = bind_ranks(scenario, layout_of(scenario), two_nodes());
  EXPECT_EQ(nodes_of(bindings), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_TRUE(bindings[0].cpus.empty());
  EXPECT_TRUE(bindings[0].memory_nodes.empty());
}

TEST(Binding, ShardNearPutsReadersOfAShardOnOneNode) {
  plan::Scenario scenario = tiny(2, 2);
  scenario.device.rank_map = "shard-near";
  EXPECT_EQ(nodes_of(bind_ranks(scenario, layout_of(scenario), two_nodes())), (std::vector<int>{0, 1, 0, 1}));
}

TEST(Binding, DeviceLocalAndListsBindCpusAndMemory) {
  plan::Scenario scenario = tiny(2, 2);
  scenario.storage.bind_ranks = "device-local";
  auto bindings = bind_ranks(scenario, layout_of(scenario), two_nodes());
  EXPECT_EQ(bindings[3].cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(bindings[3].memory_nodes, std::vector<int>{1});
  scenario.storage.bind_ranks = "1,0";
  bindings = bind_ranks(scenario, layout_of(scenario), two_nodes());
  EXPECT_EQ(bindings[0].memory_nodes, std::vector<int>{1});
  EXPECT_EQ(bindings[1].memory_nodes, std::vector<int>{0});
  EXPECT_EQ(bindings[2].memory_nodes, std::vector<int>{1});
}

TEST(Binding, MissingNodesAreSkipped) {
  plan::Scenario scenario = tiny(2, 2);
  scenario.storage.bind_ranks = "0-2";
  try {
    (void)bind_ranks(scenario, layout_of(scenario), two_nodes());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::skipped);
  }
}

TEST(Binding, GpusAreTakenInTurnOrAsListed) {
  plan::Scenario scenario = tiny(2, 2);
  const auto layout = layout_of(scenario);
  EXPECT_EQ(nodes_of(bind_ranks(scenario, layout, two_nodes(), {1, 0})), (std::vector<int>{1, 0, 1, 0}));
  scenario.device.rank_devices = {1, 1, 0, 0};
  scenario.storage.bind_ranks = "device-local";
  const auto bindings = bind_ranks(scenario, layout, two_nodes(), {1, 0});
  EXPECT_EQ(nodes_of(bindings), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(bindings[2].memory_nodes, std::vector<int>{1});
  const auto exit_of = [&](const std::vector<int>& gpu_nodes) {
    try {
      (void)bind_ranks(scenario, layout, two_nodes(), gpu_nodes);
    } catch (const Error& error) {
      return error.exit();
    }
    return Exit::ok;
  };
  EXPECT_EQ(exit_of({0}), Exit::skipped);       // device 1 is not there
  EXPECT_EQ(exit_of({-1, -1}), Exit::failure);  // its node is not stated
}

TEST(MemoryNeed, CountsEveryBackingOnceAndWeightsPerRank) {
  plan::Scenario scenario = tiny(2, 2);
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, 1.0);
  const plan::RunLayout shared = layout_of(scenario);
  const MemoryEstimate one = estimate_memory(scenario, shared, geometry, 1000);
  EXPECT_EQ(one.table_bytes, shared.backings[0].bytes + shared.backings[1].bytes);
  EXPECT_EQ(one.need.shm_file_bytes, one.table_bytes);
  EXPECT_EQ(one.need.shared_bytes, one.table_bytes + 1000);
  // wkv: 64*3 x 8*64, float32, over 2 TP ranks, in each of 4 ranks.
  EXPECT_EQ(one.weight_bytes, 4 * (64 * 3 * 512 / 2) * 4);

  scenario.parallel.table_mode = plan::TableMode::private_;
  scenario.storage.backing = plan::Backing::anon;
  const MemoryEstimate two = estimate_memory(scenario, layout_of(scenario), geometry, 1000);
  EXPECT_EQ(two.table_bytes, 2 * one.table_bytes);
  EXPECT_EQ(two.need.shm_file_bytes, 0);
  EXPECT_EQ(two.need.shared_bytes, 1000);

  scenario.storage.backing = plan::Backing::stub;
  EXPECT_EQ(estimate_memory(scenario, layout_of(scenario), geometry, 1000).table_bytes, 0);
}

TEST(MemoryNeed, PagesOfAPoolCountInTheSumAndAreAskedOfNothingElse) {
  plan::Scenario scenario = tiny(2, 2);
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, 1.0);
  const MemoryEstimate in_shm = estimate_memory(scenario, layout_of(scenario), geometry, 1000);
  EXPECT_EQ(in_shm.pool_bytes, 0);
  scenario.storage.backing = plan::Backing::hugetlb_2m;
  const MemoryEstimate in_pool = estimate_memory(scenario, layout_of(scenario), geometry, 1000);
  EXPECT_EQ(in_pool.pool_bytes, in_pool.table_bytes);
  EXPECT_EQ(in_pool.pool_bytes % (2 << 20), 0);
  EXPECT_EQ(in_pool.need.shared_bytes, 1000);
  EXPECT_EQ(in_pool.total_bytes() - in_pool.table_bytes, in_shm.total_bytes() - in_shm.table_bytes);
}

// Each arm fits its own node alone; together one node is asked for more than it has.
TEST(MemoryNeed, CoresidentArmsAddUpOnEachNode) {
  plan::Scenario scenario = tiny(2, 2);
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, 1.0);
  std::vector<ArmMemory> arms;
  for (const auto& [name, node] : {std::pair{"A", 0}, {"B", 1}, {"C", 1}}) {
    scenario.storage.policy.kind = plan::PolicyKind::bind;
    scenario.storage.policy.nodes = {node};
    arms.push_back({name, estimate_memory(scenario, layout_of(scenario), geometry, 0)});
  }
  const std::int64_t tables = arms.front().estimate.table_bytes;
  placement::MemoryLimits limits;
  limits.node_free_bytes = {{0, 2 * tables}, {1, 2 * tables}};
  EXPECT_NO_THROW(require_memory_together(arms, limits));
  limits.node_free_bytes[0] = 3 * tables;  // no help for node 1
  limits.node_free_bytes[1] = 2 * tables - 1;
  try {
    require_memory_together(arms, limits);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("memory of NUMA node 1: needs"), std::string::npos) << error.what();
  }
}

TEST(MemoryNeed, RefusalHasTheFigures) {
  const plan::Scenario scenario = tiny(2, 2);
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, 1.0);
  const MemoryEstimate estimate = estimate_memory(scenario, layout_of(scenario), geometry, 0);
  placement::MemoryLimits limits;
  EXPECT_NO_THROW(require_memory(estimate, limits));
  limits.available_bytes = 1 << 20;
  try {
    require_memory(estimate, limits);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::failure);
    EXPECT_NE(std::string(error.what()).find("1.0 MiB"), std::string::npos) << error.what();
  }
}

TEST(Preflight, SkippedComesBeforeFailure) {
  plan::Plan plan;
  plan::Arm arm;
  arm.name = "A";
  arm.scenario = tiny(2, 2);
  arm.scenario.storage.policy.kind = plan::PolicyKind::bind;
  arm.scenario.storage.policy.nodes = {777};
  arm.scenario.storage.policy.text = "bind:777";
  arm.scenario.storage.checkpoint = "/nowhere";
  plan.arms.push_back(arm);
  const auto obstacles = preflight(plan);
  ASSERT_EQ(obstacles.size(), 2U);
  EXPECT_EQ(obstacles[0].exit, Exit::skipped);
  EXPECT_NE(obstacles[0].text.find("777"), std::string::npos);
  EXPECT_EQ(obstacles[1].exit, Exit::failure);
  EXPECT_NE(obstacles[1].text.find("/nowhere"), std::string::npos);
  plan.arms[0].scenario = tiny(2, 2);
  EXPECT_TRUE(preflight(plan).empty());
  plan.arms[0].scenario.workload.tokens.kind = plan::TokenKind::file;
  plan.arms[0].scenario.workload.tokens.file = "/nowhere.bin";
  ASSERT_EQ(preflight(plan).size(), 1U);
  EXPECT_EQ(preflight(plan)[0].exit, Exit::usage);
}

}  // namespace
}  // namespace eb::supervise
