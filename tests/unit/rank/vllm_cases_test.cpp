// The cases of vLLM's public test of DP-sharded Engram tables (tests/distributed/test_engram_dp_shard.py at db9527a),
// told anew over the whole step: small tables of 8 and of 7 heads (7 leaves a padded head on the last shard), four
// ranks as TP1 x DP4 and TP2 x DP2, with and without sequence parallelism, replicas with 7, 0, 5 and 1 tokens, and a
// step in which nobody has a token. Every gathered row must be, bit for bit, what the table defines for the reference's
// id.
#include <gtest/gtest.h>

#include <cstring>

#include "harness/engram/content.h"
#include "tests/unit/rank/step_fixture.h"

namespace eb::rank::test {
namespace {

struct Case {
  int tp;
  int dp;
  int heads;
  bool sequence_parallel;
  plan::TableMode mode;
  Device device;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = "tp" + std::to_string(c.tp) + "_dp" + std::to_string(c.dp) + "_heads" + std::to_string(c.heads);
  if (c.sequence_parallel) name += "_sp";
  name += std::string("_") + (c.mode == plan::TableMode::shared       ? "shared"
                              : c.mode == plan::TableMode::dp_sharded ? "dp_sharded"
                                                                      : "private");
  return name + (c.device == Device::cpu ? "_cpu" : "_fake");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Device device : {Device::cpu, Device::fake})
    for (const plan::TableMode mode : {plan::TableMode::private_, plan::TableMode::shared, plan::TableMode::dp_sharded})
      for (const int heads : {8, 7}) {
        cases.push_back({1, 4, heads, false, mode, device});
        cases.push_back({2, 2, heads, false, mode, device});
        cases.push_back({2, 2, heads, true, mode, device});
      }
  return cases;
}

// Step 0: uneven replicas, one of them idle. Step 1: nobody has a token. Step 2: the idle one alone has work.
plan::Scenario uneven(const Case& c) {
  plan::Scenario scenario = tiny(c.tp, c.dp, c.mode, c.heads);
  scenario.parallel.sequence_parallel = c.sequence_parallel;
  const std::vector<std::int64_t> tokens =
      c.dp == 4 ? std::vector<std::int64_t>{7, 0, 5, 1} : std::vector<std::int64_t>{7, 1};
  scenario.workload.batches.clear();
  for (int replica = 0; replica < c.dp; ++replica) {
    const std::int64_t first = tokens[static_cast<std::size_t>(replica)];
    scenario.workload.batches.push_back(first > 0 ? batch({first}, 0, replica) : batch({}, 0, replica));
    scenario.workload.batches.push_back(batch({}, 0, replica));
    scenario.workload.batches.push_back(replica == 1 ? batch({2}, 1, replica) : batch({}, 0, replica));
  }
  return scenario;
}

class VllmCases : public testing::TestWithParam<Case> {};

TEST_P(VllmCases, RowsOfEveryReplicaEqualTheReference) {
  StepRun run;
  run.scenario = uneven(GetParam());
  run.device = GetParam().device;
  run.slots = {checked_slot(1, 0), checked_slot(1, 1), checked_slot(1, 2), checked_slot(4, 0)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  const bool dp_sharded = GetParam().mode == plan::TableMode::dp_sharded;
  for (const RankOutcome& rank : ranks) {
    ASSERT_EQ(rank.facts.size(), 4U);
    const auto replica = static_cast<std::size_t>((&rank - ranks.data()) / GetParam().tp);
    const std::vector<std::int64_t> tokens =
        GetParam().dp == 4 ? std::vector<std::int64_t>{7, 0, 5, 1} : std::vector<std::int64_t>{7, 1};
    const nlohmann::json& facts = rank.facts[0];
    EXPECT_EQ(facts["own_tokens"], tokens[replica]);
    EXPECT_EQ(facts["common_slot_tokens"], dp_sharded ? 7 : tokens[replica]);
    // Ids: all replicas' common slot where they are exchanged.
    const std::int64_t columns = GetParam().heads;
    EXPECT_EQ(facts["checks"]["ids"]["compared"], dp_sharded ? 7 * GetParam().dp * columns : tokens[replica] * columns);
    if (!GetParam().sequence_parallel) {
      EXPECT_EQ(facts["checks"]["rows"]["compared"], tokens[replica] * columns);
    } else {
      EXPECT_EQ(facts["checks"]["rows"]["compared"], (tokens[replica] + 1) / 2 * columns);
    }
    EXPECT_EQ(rank.facts[1]["own_tokens"], 0);
    EXPECT_TRUE(rank.facts[1]["collectives"].empty());
    EXPECT_EQ(rank.facts[1]["lookups"][0]["rows"], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, VllmCases, testing::ValuesIn(all_cases()), case_name);

class IdleReplica : public testing::TestWithParam<Case> {};

TEST_P(IdleReplica, TakesPartInTheExchange) {
  StepRun run;
  run.scenario = uneven(GetParam());
  run.device = GetParam().device;
  run.slots = {checked_slot(1, 0)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  const nlohmann::json& idle = ranks[1].facts.at(0);
  EXPECT_EQ(idle["own_tokens"], 0);
  EXPECT_EQ(idle["padded_share"], 1.0);
  // It looks its heads up for all four replicas' slots: 2 heads (padded where there are 7) of 28 tokens.
  EXPECT_EQ(idle["lookups"][0]["rows"], 28 * 2);
  EXPECT_EQ(idle["lookups"][0]["rows_last_step"], 13 * 2);  // DEAD_ID is no row
  ASSERT_EQ(idle["collectives"].size(), 2U);
  EXPECT_EQ(idle["collectives"][0]["object"], "ids");
  EXPECT_EQ(idle["collectives"][0]["calls"], 1);
  EXPECT_EQ(idle["collectives"][0]["bytes"], 7 * GetParam().heads * 4 * 3);
  EXPECT_EQ(idle["collectives"][1]["object"], "rows");
  EXPECT_EQ(idle["collectives"][1]["bytes"], 28 * 2 * 64 * 2 * 3);
}

INSTANTIATE_TEST_SUITE_P(All, IdleReplica,
                         testing::Values(Case{1, 4, 8, false, plan::TableMode::dp_sharded, Device::cpu},
                                         Case{1, 4, 7, false, plan::TableMode::dp_sharded, Device::cpu},
                                         Case{1, 4, 8, false, plan::TableMode::dp_sharded, Device::fake},
                                         Case{1, 4, 7, false, plan::TableMode::dp_sharded, Device::fake}),
                         case_name);

// All ids dead: every row of the staging is zero, whatever was there, on every shard.
class AllDead : public testing::TestWithParam<int> {};

TEST_P(AllDead, GivesZeroRows) {
  const int heads = GetParam();
  const plan::Scenario scenario = tiny(1, 4, plan::TableMode::dp_sharded, heads);
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, 1.0);
  const plan::RunLayout layout = plan::make_layout(scenario, geometry);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(28 * heads), engram::kDeadId);
  for (const plan::RankPlace& place : layout.ranks) {
    std::vector<std::uint8_t> table(
        static_cast<std::size_t>(plan::make_backing_layout(geometry, place.shard, plan::Layout::split).bytes), 0x3C);
    kernels::LookupArgs args;
    args.table.weights = reinterpret_cast<const std::byte*>(table.data());
    args.table.scales = args.table.weights;
    args.table.weight_stride = 64;
    args.table.scale_stride = 2;
    args.table.first_row = place.shard.rows[0].first;
    args.table.rows = place.shard.rows[0].count;
    args.table.dim = 64;
    args.table.block = 32;
    args.ids = ids.data();
    args.id_token_stride = heads;
    args.id_offset = place.shard.first_column;
    args.tokens = 28;
    args.columns = place.shard.columns;
    args.heads = place.shard.part;
    std::vector<Bf16> staging(static_cast<std::size_t>(args.rows() * 64), Bf16{0xFFFF});
    args.staging = staging.data();
    backend::CpuOptions options;
    const auto backend = backend::make_cpu_backend(options);
    const backend::StreamId stream = backend->create_stream("main");
    backend->lookup(stream, {backend::OpKind::lookup, 0}, args, 4);
    backend->synchronize();
    for (const Bf16 value : staging) ASSERT_EQ(value.bits, 0) << "rank " << place.rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, AllDead, testing::Values(8, 7));

}  // namespace
}  // namespace eb::rank::test
