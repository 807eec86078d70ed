// Who reads which copy, on machines that are not there: rank maps, copies, consumer's nodes and groupings over the
// two-socket topologies of tests/data/topology and over synthetic ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "harness/base/error.h"
#include "harness/engram/ledger.h"
#include "harness/plan/ledger_input.h"
#include "harness/supervise/binding.h"
#include "harness/supervise/copies.h"
#include "harness/supervise/memory_need.h"

namespace eb::supervise {
namespace {

using plan::Copies;
using plan::PolicyKind;
using ::testing::HasSubstr;

plan::Scenario scenario_of(int tp, int dp, plan::TableMode mode = plan::TableMode::shared) {
  plan::Scenario scenario;
  scenario.model.base = engram::preset("deepseek-v4.1-flash");
  scenario.model.table_scale = 0.0001;
  scenario.parallel.tp = tp;
  scenario.parallel.dp = dp;
  scenario.parallel.table_mode = mode;
  scenario.storage.policy.kind = PolicyKind::bind;
  scenario.storage.policy.nodes = {0};
  scenario.storage.policy.text = "bind:0";
  scenario.workload.batches = {plan::Batch{{4}, 2, -1}};
  return scenario;
}

engram::Geometry geometry_of(const plan::Scenario& scenario) {
  return engram::make_geometry(scenario.model.base, scenario.model.table_scale);
}

struct Machine {
  placement::Topology topology;
  std::vector<int> gpu_nodes;
};

Machine machine(const char* file) {
  Machine out;
  out.topology = placement::read_topology_xml(std::string(EB_TEST_DATA) + "/topology/" + file);
  for (const placement::PciDevice& device : out.topology.devices) {
    if (device.kind == "gpu") out.gpu_nodes.push_back(device.node);
  }
  return out;
}

const Machine& two_sockets() {
  static const Machine one = machine("two-socket-8gpu.xml");
  return one;
}
const Machine& nps4() {
  static const Machine one = machine("nps4-8gpu.xml");
  return one;
}

MachineLayout on(const Machine& machine, const plan::Scenario& scenario) {
  return machine_layout(scenario, geometry_of(scenario), machine.topology, machine.gpu_nodes);
}

std::string error_of(const Machine& machine, const plan::Scenario& scenario, Exit exit) {
  try {
    static_cast<void>(on(machine, scenario));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), exit) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::vector<int> devices_of(const MachineLayout& found) {
  std::vector<int> devices;
  for (const RankBinding& binding : found.bindings) devices.push_back(binding.device);
  return devices;
}

// W times the bytes of one copy that the backings take.
double copies_of_w(const plan::Scenario& scenario, const plan::RunLayout& layout) {
  const engram::Ledger ledger = engram::make_ledger(geometry_of(scenario), plan::ledger_input(scenario, layout));
  EXPECT_EQ(ledger.backing_bytes.size(), layout.backings.size());
  std::int64_t backing_bytes = 0;
  for (const plan::BackingPlace& backing : layout.backings) backing_bytes += backing.bytes;
  // The ledger counts rows, a backing whole pages of each array.
  EXPECT_NEAR(static_cast<double>(backing_bytes), static_cast<double>(ledger.table_bytes),
              0.01 * static_cast<double>(ledger.table_bytes));
  return static_cast<double>(ledger.table_bytes) / static_cast<double>(ledger.table_bytes_one_copy);
}

TEST(Topologies, AreWhatTheTestsBelowThink) {
  EXPECT_EQ(two_sockets().gpu_nodes, (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(nps4().gpu_nodes, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(RankMap, DefaultTakesGpusInTurn) {
  const MachineLayout found = on(two_sockets(), scenario_of(4, 2));
  EXPECT_EQ(devices_of(found), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(nodes_of(found.bindings), (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(RankMap, ShardNearBringsTheReadersOfAShardToOneSocket) {
  plan::Scenario scenario = scenario_of(4, 2);
  scenario.device.rank_map = "shard-near";
  const MachineLayout found = on(two_sockets(), scenario);
  // Ranks r and r + 4 read shard r: shards 0 and 1 on socket 0, shards 2 and 3 on socket 1.
  EXPECT_EQ(nodes_of(found.bindings), (std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1}));
  const std::vector<int> devices = devices_of(found);
  EXPECT_EQ(std::set<int>(devices.begin(), devices.end()).size(), 8U) << "each rank has a GPU of its own";
  for (std::size_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(two_sockets().gpu_nodes[static_cast<std::size_t>(devices[rank])], found.bindings[rank].numa_node);
  }
}

TEST(RankMap, ShardNearPutsWhatDoesNotFitElsewhereAndLosesNoGpu) {
  plan::Scenario scenario = scenario_of(3, 2);  // three shards of two readers over nodes with one GPU each
  scenario.device.rank_map = "shard-near";
  const std::vector<int> devices = devices_of(on(nps4(), scenario));
  EXPECT_EQ(std::set<int>(devices.begin(), devices.end()).size(), 6U);
  // Eight readers of one shard: more than a socket has GPUs.
  scenario = scenario_of(1, 8);
  scenario.device.rank_map = "shard-near";
  const std::vector<int> all = devices_of(on(two_sockets(), scenario));
  EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), 8U);
}

TEST(RankMap, ShardNearSharesGpusEvenlyWhereRanksOutnumberThem) {
  plan::Scenario scenario = scenario_of(4, 4);
  scenario.device.rank_map = "shard-near";
  const MachineLayout found = on(two_sockets(), scenario);
  std::map<int, int> ranks_of_gpu;
  for (const int device : devices_of(found)) ++ranks_of_gpu[device];
  EXPECT_EQ(ranks_of_gpu.size(), 8U);
  for (const auto& [gpu, ranks] : ranks_of_gpu) EXPECT_EQ(ranks, 2) << "GPU " << gpu;
  for (std::size_t rank = 0; rank < 16; ++rank) {
    EXPECT_EQ(found.bindings[rank].numa_node, found.bindings[rank % 4].numa_node);
  }
}

TEST(CopiesPerNode, GroupReadersByTheNodeOfTheirDevice) {
  plan::Scenario scenario = scenario_of(4, 2);
  const plan::RunLayout one = on(two_sockets(), scenario).layout;
  ASSERT_EQ(one.backings.size(), 4U);
  EXPECT_EQ(one.backings[0].node, -1);
  EXPECT_DOUBLE_EQ(copies_of_w(scenario, one), 1.0);

  scenario.storage.copies = Copies::per_numa_node;
  const plan::RunLayout found = on(two_sockets(), scenario).layout;
  ASSERT_EQ(found.backings.size(), 8U);
  for (int shard = 0; shard < 4; ++shard) {
    for (int node = 0; node < 2; ++node) {
      const plan::BackingPlace& copy = found.backings[static_cast<std::size_t>(shard * 2 + node)];
      EXPECT_EQ(copy.index, shard * 2 + node);
      EXPECT_EQ(copy.node, node);
      EXPECT_EQ(copy.readers, std::vector<int>{shard + 4 * node});
      EXPECT_EQ(copy.leader, copy.readers.front());
      EXPECT_EQ(plan::policy_of(scenario.storage, copy).nodes, std::vector<int>{node});
    }
  }
  EXPECT_DOUBLE_EQ(copies_of_w(scenario, found), 2.0);
  // Shards, head ranges and groups are those of one copy.
  EXPECT_EQ(found.tp_groups, one.tp_groups);
  EXPECT_EQ(found.edp_groups, one.edp_groups);
  for (std::size_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(found.ranks[rank].shard.index, one.ranks[rank].shard.index);
    EXPECT_EQ(found.ranks[rank].shard.first_column, one.ranks[rank].shard.first_column);
    EXPECT_TRUE(found.ranks[rank].backing_leader);
    const plan::BackingPlace& backing = found.backings[static_cast<std::size_t>(found.ranks[rank].backing)];
    EXPECT_EQ(backing.readers, std::vector<int>{static_cast<int>(rank)});
  }
}

TEST(CopiesPerNode, TakeWWhereNoShardStraddles) {
  plan::Scenario scenario = scenario_of(4, 2);
  scenario.storage.copies = Copies::per_numa_node;
  scenario.device.rank_map = "shard-near";
  const plan::RunLayout found = on(two_sockets(), scenario).layout;
  EXPECT_EQ(found.backings.size(), 4U);
  EXPECT_EQ(found.backings[0].readers, (std::vector<int>{0, 4}));
  EXPECT_DOUBLE_EQ(copies_of_w(scenario, found), 1.0);
}

TEST(CopiesPerNode, CountOnlyTheShardsThatStraddle) {
  plan::Scenario scenario = scenario_of(2, 4);
  scenario.storage.copies = Copies::per_numa_node;
  scenario.device.rank_devices = {0, 1, 2, 3, 0, 4, 1, 5};  // shard 0 (even ranks) on socket 0, shard 1 on both
  const plan::RunLayout found = on(two_sockets(), scenario).layout;
  ASSERT_EQ(found.backings.size(), 3U);
  EXPECT_EQ(found.backings[0].readers, (std::vector<int>{0, 2, 4, 6}));
  EXPECT_EQ(found.backings[1].readers, (std::vector<int>{1, 3}));
  EXPECT_EQ(found.backings[2].readers, (std::vector<int>{5, 7}));
  EXPECT_EQ(found.backings[2].leader, 5);
  EXPECT_FALSE(found.ranks[7].backing_leader);
  EXPECT_NEAR(copies_of_w(scenario, found), 1.5, 0.02);  // shards are not of quite the same size
}

TEST(CopiesPerNode, FourNodesASocketGiveACopyANode) {
  plan::Scenario scenario = scenario_of(2, 4);
  scenario.storage.copies = Copies::per_numa_node;
  const plan::RunLayout found = on(nps4(), scenario).layout;
  EXPECT_EQ(found.backings.size(), 8U);  // each shard has readers on four nodes
  EXPECT_DOUBLE_EQ(copies_of_w(scenario, found), 4.0);
}

TEST(Interleave, NeedsItsShareOfEachNode) {
  plan::Scenario scenario = scenario_of(4, 2);
  scenario.device.backend = plan::BackendKind::cpu;
  scenario.storage.policy.kind = plan::PolicyKind::interleave;
  scenario.storage.policy.nodes = {0, 1};
  const MemoryEstimate estimate =
      estimate_memory(scenario, on(two_sockets(), scenario).layout, geometry_of(scenario), 0);
  ASSERT_EQ(estimate.need.node_bytes.size(), 2U);
  EXPECT_EQ(estimate.need.node_bytes.at(1), estimate.table_bytes / 2);
  // Where less will do, the kernel's fallback to another node is no obstacle.
  const MemoryEstimate degraded =
      estimate_memory(scenario, on(two_sockets(), scenario).layout, geometry_of(scenario), 0, {true});
  EXPECT_TRUE(degraded.need.node_bytes.empty());
}

TEST(Bind, HoldsForPrivateTablesToo) {
  plan::Scenario scenario = scenario_of(2, 1);
  scenario.device.backend = plan::BackendKind::cpu;
  scenario.parallel.table_mode = plan::TableMode::private_;
  scenario.storage.backing = plan::Backing::anon;
  scenario.storage.policy.kind = plan::PolicyKind::bind;
  scenario.storage.policy.nodes = {1};
  const MemoryEstimate estimate =
      estimate_memory(scenario, on(two_sockets(), scenario).layout, geometry_of(scenario), 0);
  placement::MemoryLimits limits;
  limits.node_free_bytes = {{0, 4 * estimate.table_bytes}, {1, estimate.table_bytes - 1}};
  EXPECT_THROW(require_memory(estimate, limits), Error);
  EXPECT_THROW(require_memory_together({{"A", estimate}}, limits), Error);
  limits.node_free_bytes[1] = estimate.table_bytes;
  EXPECT_NO_THROW(require_memory(estimate, limits));
}

TEST(BoundRanks, NeedTheirNodesMemoryForThemselvesAndForTablesWithoutAPolicy) {
  plan::Scenario scenario = scenario_of(2, 2);
  scenario.device.backend = plan::BackendKind::cpu;
  scenario.storage.policy = {};
  scenario.storage.bind_ranks = "1";
  const auto need_of = [&] {
    const MachineLayout machine = on(two_sockets(), scenario);
    return estimate_memory(scenario, machine.layout, geometry_of(scenario), 0, {false, machine.bindings});
  };
  MemoryEstimate estimate = need_of();
  const std::int64_t own = estimate.weight_bytes + estimate.buffer_bytes + estimate.process_bytes;
  EXPECT_EQ(estimate.need.node_bytes, (std::map<int, std::int64_t>{{1, own / 4 * 4 + estimate.table_bytes}}));
  scenario.storage.policy.kind = plan::PolicyKind::bind;  // the tables' own policy goes before the ranks'
  scenario.storage.policy.nodes = {0};
  estimate = need_of();
  EXPECT_EQ(estimate.need.node_bytes, (std::map<int, std::int64_t>{{1, own / 4 * 4}}));
  EXPECT_EQ(estimate.need.bind_nodes, (std::vector<int>{0}));
  scenario.storage.policy.kind = plan::PolicyKind::stock;  // whoever comes first takes the pages
  scenario.storage.bind_ranks = "0,1";
  scenario.parallel.tp = 1;
  scenario.parallel.dp = 2;
  estimate = need_of();
  EXPECT_EQ(estimate.need.node_bytes.at(0), estimate.need.node_bytes.at(1));
  EXPECT_EQ(estimate.need.node_bytes.at(0),
            (estimate.weight_bytes + estimate.buffer_bytes + estimate.process_bytes) / 2);
}

TEST(CopiesPerNode, NeedEachNodesMemory) {
  plan::Scenario scenario = scenario_of(4, 2);
  scenario.device.backend = plan::BackendKind::cpu;
  scenario.storage.copies = Copies::per_numa_node;
  const plan::RunLayout found = on(two_sockets(), scenario).layout;
  const MemoryEstimate estimate = estimate_memory(scenario, found, geometry_of(scenario), 0);
  ASSERT_EQ(estimate.need.node_bytes.size(), 2U);
  EXPECT_EQ(estimate.need.node_bytes.at(0) + estimate.need.node_bytes.at(1), estimate.table_bytes);
  EXPECT_TRUE(estimate.need.bind_nodes.empty());  // storage.policy bind:0 does not hold for copies
  placement::MemoryLimits limits;
  limits.node_free_bytes = {{0, estimate.table_bytes}, {1, 4096}};
  try {
    require_memory(estimate, limits);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("memory of NUMA node 1: needs"));
    EXPECT_THAT(error.what(), HasSubstr("4.0 KiB free"));
  }
}

TEST(CopiesPerNode, NeedTwoNodes) {
  plan::Scenario scenario = scenario_of(2, 2);
  scenario.storage.copies = Copies::per_numa_node;
  const auto exit_of = [&](const placement::Topology& topology) {
    try {
      check_copies(scenario, topology);
    } catch (const Error& error) {
      return error.exit();
    }
    return Exit::ok;
  };
  placement::Topology topology = placement::synthetic_topology("pack:2 [numa(memory=1073741824)] core:2 pu:1");
  EXPECT_EQ(exit_of(topology), Exit::ok);
  topology.nodes[1].allowed = false;
  EXPECT_EQ(exit_of(topology), Exit::failure);
  topology.nodes[1].bytes = 0;
  EXPECT_EQ(exit_of(topology), Exit::skipped);
  EXPECT_EQ(exit_of(placement::synthetic_topology("numa:1(memory=1073741824) core:2 pu:1")), Exit::skipped);
  scenario.storage.copies = Copies::one;
  EXPECT_EQ(exit_of(topology), Exit::ok);
}

TEST(CopiesPerNode, HoldTheSameBytes) {
  plan::Scenario scenario = scenario_of(2, 2);
  scenario.storage.copies = Copies::per_numa_node;
  const plan::RunLayout layout = on({two_sockets().topology, {}}, scenario).layout;  // CPU ranks: {0, 0, 1, 1}
  ASSERT_EQ(layout.backings.size(), 4U);
  std::vector<CopyDigest> digests{{0, "aa"}, {1, "aa"}, {2, "bb"}, {3, "bb"}};
  EXPECT_NO_THROW(require_equal_copies(layout, digests));
  digests[3].sha256 = "cc";
  try {
    require_equal_copies(layout, digests);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_data);
    EXPECT_THAT(error.what(), HasSubstr("copies of shard 1 differ"));
    EXPECT_THAT(error.what(), HasSubstr("node 1 (leader rank 3) has cc"));
  }
}

TEST(Consumer, LiesWhereAllReadersOfAShardAre) {
  plan::Scenario scenario = scenario_of(4, 2);
  scenario.storage.policy = {};
  scenario.storage.policy.kind = PolicyKind::consumer;
  scenario.storage.policy.text = "consumer";
  const std::string text = error_of(two_sockets(), scenario, Exit::failure);
  EXPECT_THAT(text, HasSubstr("the readers of shard 0 are on several NUMA nodes: node 0 (rank 0), node 1 (rank 4)"));
  EXPECT_THAT(text, HasSubstr("shard-near"));
  scenario.device.rank_map = "shard-near";
  const plan::RunLayout found = on(two_sockets(), scenario).layout;
  ASSERT_EQ(found.backings.size(), 4U);
  EXPECT_EQ(found.backings[0].node, 0);
  EXPECT_EQ(found.backings[1].node, 0);
  EXPECT_EQ(found.backings[2].node, 1);
  EXPECT_EQ(found.backings[3].node, 1);
  EXPECT_DOUBLE_EQ(copies_of_w(scenario, found), 1.0);
  // Two readers of a shard on nodes with one GPU each cannot be together.
  error_of(nps4(), scenario, Exit::failure);
  scenario.device.rank_map = "default";
  scenario.parallel.table_mode = plan::TableMode::private_;  // every table has one reader
  scenario.storage.backing = plan::Backing::anon;
  for (const plan::BackingPlace& backing : on(nps4(), scenario).layout.backings) {
    EXPECT_EQ(backing.node, backing.readers.front());
  }
}

TEST(Consumer, NeedsDevicesWhoseNodeIsStated) {
  plan::Scenario scenario = scenario_of(2, 2);
  scenario.storage.policy = {};
  scenario.storage.policy.kind = PolicyKind::consumer;
  EXPECT_THAT(error_of({two_sockets().topology, {-1, -1, -1, -1}}, scenario, Exit::failure),
              HasSubstr("states no NUMA node for the device of rank 0"));
  scenario.storage.policy.kind = PolicyKind::bind;
  scenario.storage.copies = Copies::per_numa_node;
  EXPECT_THAT(error_of({two_sockets().topology, {-1, -1, -1, -1}}, scenario, Exit::failure),
              HasSubstr("states no NUMA node for the device of rank 0"));
}

TEST(CpuRanks, StandOnTheNodesThemselves) {
  plan::Scenario scenario = scenario_of(2, 2);
  scenario.storage.copies = Copies::per_numa_node;
  const MachineLayout found = on({two_sockets().topology, {}}, scenario);
  EXPECT_EQ(nodes_of(found.bindings), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(found.layout.backings.size(), 4U);
  scenario.device.rank_map = "shard-near";
  EXPECT_EQ(nodes_of(on({two_sockets().topology, {}}, scenario).bindings), (std::vector<int>{0, 1, 0, 1}));
}

}  // namespace
}  // namespace eb::supervise
