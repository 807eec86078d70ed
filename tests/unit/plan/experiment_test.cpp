// Arms, controls, and what a scenario may not say although each value is fine by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/base/error.h"
#include "harness/plan/scenario.h"

namespace eb::plan {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBase = R"({"name": "t", "model": {"table_scale": 0.0001},
  "workload": {"batches": [{"prefill": [5]}], "tokens": {"kind": "uniform"}}})";

Plan plan_of(const std::vector<Setting>& settings) { return parse_plan(kBase, "/folder", settings); }

std::string error_of(const std::vector<Setting>& settings) {
  try {
    static_cast<void>(plan_of(settings));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << settings.at(0).key << "=" << settings.at(0).value;
  return "";
}

std::vector<Setting> experiment(const char* factor, const char* arms) {
  return {{"experiment.factor", factor}, {"experiment.arms", arms}};
}

const Arm& arm_of(const Plan& plan, const std::string& name) {
  for (const Arm& arm : plan.arms) {
    if (arm.name == name) return arm;
  }
  throw Error(Exit::failure, "no arm " + name);
}

TEST(Experiment, ArmsAreWholeScenariosWithTheFactorChanged) {
  const Plan plan = plan_of(experiment("storage.policy", R"({"A": "bind:0", "B": "bind:1"})"));
  ASSERT_EQ(plan.arms.size(), 2u);
  EXPECT_FALSE(plan.arms_share_allocation);
  EXPECT_EQ(plan.arms[0].scenario.storage.policy.nodes, std::vector<int>{0});
  EXPECT_EQ(plan.arms[1].scenario.storage.policy.nodes, std::vector<int>{1});
  EXPECT_EQ(plan.arms[1].overrides.at("storage.policy"), "\"bind:1\"");
  EXPECT_TRUE(plan_of(experiment("prefetch.submit", R"({"A": "early", "B": "at_consume"})")).arms_share_allocation);
  EXPECT_TRUE(plan_of(experiment("workload.batches.0.decode", R"({"A": 1, "B": 2})")).arms_share_allocation);
}

TEST(Experiment, ArmsMustBeThereAndDiffer) {
  EXPECT_THAT(error_of(experiment("storage.policy", "{}")), HasSubstr("experiment.arms is empty"));
  EXPECT_THAT(error_of({{"experiment.arms", "{}"}}), HasSubstr("experiment.arms is empty"));
  EXPECT_THAT(error_of({{"experiment.factor", "storage.policy"}}), HasSubstr("needs experiment.arms"));
  EXPECT_THAT(error_of({{"experiment.arms", R"({"A": 1, "B": 2})"}}), HasSubstr("needs experiment.factor"));
  EXPECT_THAT(error_of(experiment("storage.policy", R"({"A": "bind:0"})")), HasSubstr("names one arm"));
  EXPECT_THAT(error_of(experiment("prefetch.submit", R"({"A": "early", "B": "early"})")),
              HasSubstr("the arms A and B are equal"));
  // Equal although written in two ways.
  EXPECT_THAT(error_of(experiment("workload.steps", R"({"A": 20, "B": 2e1})")), HasSubstr("are equal"));
  EXPECT_THAT(error_of(experiment("workload.steps", R"({"a b": 20, "B": 21})")), HasSubstr("the name \"a b\""));
}

TEST(Experiment, FactorsAndControlsNameKeysThatExist) {
  EXPECT_THAT(error_of(experiment("storage.polcy", R"({"A": 1, "B": 2})")), HasSubstr("nearest: storage.policy"));
  EXPECT_THAT(error_of(experiment("polcy", R"({"A": 1, "B": 2})")), HasSubstr("nearest: storage.policy"));
  EXPECT_THAT(error_of(experiment("storage", R"({"A": {}, "B": {}})")), HasSubstr("holds several keys"));
  EXPECT_THAT(error_of(experiment("seed", R"({"A": 1, "B": 2})")), HasSubstr("cannot differ between arms"));
  EXPECT_THAT(error_of(experiment("experiment.pairs", R"({"A": 1, "B": 2})")), HasSubstr("cannot differ"));
  EXPECT_THAT(error_of(experiment("prefetch.submit", R"({"A": "early", "B": "late"})")),
              HasSubstr("arm B: prefetch.submit: expected one of early, at_consume"));
  EXPECT_THAT(error_of({{"experiment.controls", R"({"c": {"storage.polcy": "none"}})"}}),
              HasSubstr("control c: unknown key storage.polcy; nearest: storage.policy"));
  EXPECT_THAT(error_of({{"experiment.controls", R"({"c": {}})"}}), HasSubstr("changes no key"));
  EXPECT_THAT(error_of({{"experiment.controls", R"({"A": {"seed": 2}})"}}), HasSubstr("names an arm and a control"));
  EXPECT_THAT(error_of({{"experiment.controls", R"({"c": {"seed": 2}})"}}), HasSubstr("cannot differ"));
}

TEST(Experiment, BoundsAreControlsOnly) {
  auto settings = experiment("prefetch.submit", R"({"A": "early", "B": "at_consume"})");
  settings.push_back({"storage.backing", "stub"});
  EXPECT_THAT(error_of(settings), HasSubstr("cannot be an arm of prefetch.submit"));
  settings.back().value = "hbm";
  EXPECT_THAT(error_of(settings), HasSubstr("cannot be an arm of prefetch.submit"));
  EXPECT_THAT(error_of(experiment("storage.backing", R"({"A": "shm", "B": "stub"})")), HasSubstr("is a bound"));
  const Plan plan = plan_of({{"experiment.controls.none.storage.backing", "stub"}});
  EXPECT_TRUE(arm_of(plan, "none").research);
  EXPECT_NO_THROW(plan_of({{"experiment.controls.h.storage.backing", "hbm"}, {"device.backend", "cuda"}}));
  // The backend cannot do it: a run leaves it out by name.
  EXPECT_NO_THROW(plan_of({{"experiment.controls.h.storage.backing", "hbm"}, {"device.backend", "cpu"}}));
  EXPECT_THAT(error_of({{"storage.backing", "hbm"}, {"device.backend", "cpu"}}),
              HasSubstr("storage.backing hbm is device memory: it needs device.backend cuda, found cpu"));
  EXPECT_THAT(error_of({{"prefetch.graph", "piecewise"}, {"device.backend", "cpu"}}),
              HasSubstr("prefetch.graph piecewise needs device.backend cuda"));
}

TEST(Experiment, ProvenanceSaysWhatIsStock) {
  const Plan plan = plan_of({{"experiment.controls.stock.storage.policy", "stock"},
                             {"experiment.controls.late", R"({"storage.policy": "stock",
                                "prefetch.submit": "at_consume", "prefetch.grid_cap": 4})"}});
  EXPECT_TRUE(plan.arms[0].research);
  EXPECT_THAT(plan.arms[0].provenance, HasSubstr("policy bind:0 set before registration"));
  EXPECT_THAT(plan.arms[0].provenance, HasSubstr("pre-touch"));
  const Arm& stock = arm_of(plan, "stock");
  EXPECT_FALSE(stock.research);
  EXPECT_EQ(stock.provenance, "vLLM default (DP-shared Engram over host memory)");
  EXPECT_EQ(stock.scenario.storage.pretouch, PretouchKind::none);  // comes with stock
  const Arm& late = arm_of(plan, "late");
  EXPECT_TRUE(late.research);
  EXPECT_THAT(late.provenance, HasSubstr("at its consumer"));
  EXPECT_THAT(late.provenance, HasSubstr("grid cap 4"));
}

TEST(Checks, ShardsNeedHeads) {
  EXPECT_THAT(error_of({{"parallel.tp", "16"}}),
              HasSubstr("Engram sharding leaves ranks without hash heads: 24 heads over 16 shards"));
  EXPECT_THAT(error_of({{"parallel.tp", "8"}, {"parallel.table_mode", "dp_sharded"}}), HasSubstr("over 16 shards"));
}

TEST(Checks, ModesNeedPeersAndFittingBackings) {
  EXPECT_THAT(error_of({{"parallel.dp", "1"}}), HasSubstr("parallel.table_mode shared needs replicas"));
  EXPECT_THAT(error_of({{"parallel.dp", "1"}, {"parallel.table_mode", "dp_sharded"}}),
              HasSubstr("parallel.table_mode dp_sharded needs replicas"));
  EXPECT_THAT(error_of({{"storage.backing", "anon"}}), HasSubstr("anon cannot serve parallel.table_mode shared"));
  EXPECT_THAT(error_of({{"storage.backing", "hugetlb-2m"}, {"parallel.table_mode", "private"}}),
              HasSubstr("cannot serve parallel.table_mode private; backings that can: shm, memfd, anon"));
  EXPECT_NO_THROW(plan_of({{"storage.backing", "anon"}, {"parallel.table_mode", "private"}}));
  EXPECT_NO_THROW(plan_of({{"storage.backing", "shm"}, {"parallel.table_mode", "private"}}));
  EXPECT_NO_THROW(plan_of({{"parallel.dp", "1"}, {"parallel.table_mode", "private"}}));
  EXPECT_THAT(error_of({{"parallel.ep", "2"}, {"parallel.dp", "3"}}), HasSubstr("does not divide"));
  EXPECT_THAT(error_of({{"parallel.ep", "2"}}), HasSubstr("expert_bytes_per_token"));
}

TEST(Checks, StockIsVllmsOrder) {
  EXPECT_THAT(error_of({{"storage.policy", "stock"}, {"storage.pretouch", "leader"}}),
              HasSubstr("storage.pretouch none, found leader"));
  EXPECT_THAT(error_of({{"storage.policy", "stock"}, {"storage.backing", "memfd"}}), HasSubstr("storage.backing shm"));
  EXPECT_THAT(error_of({{"storage.policy", "stock"}, {"parallel.table_mode", "private"}}), HasSubstr("shared"));
  EXPECT_THAT(error_of({{"storage.policy", "stock"}, {"storage.copies", "per-numa-node"}}), HasSubstr("copies one"));
  EXPECT_NO_THROW(plan_of({{"storage.policy", "stock"}}));
}

TEST(Checks, WhatIsNotBuiltIsRefusedByName) {
  const std::vector<Setting> refused{
      {"workload.kind", "replay"}, {"workload.kind", "remote"}, {"model.preset", "deepep-default"}};
  for (const Setting& setting : refused) {
    const std::string text = error_of({setting});
    EXPECT_THAT(text, HasSubstr("not in this version")) << setting.value;
    EXPECT_THAT(text, HasSubstr(setting.key)) << setting.value;
  }
}

TEST(Checks, WeightsAreAboveZeroAndOneANode) {
  EXPECT_THAT(error_of({{"storage.policy", "weighted:0"}}), HasSubstr("node=weight"));
  EXPECT_THAT(error_of({{"storage.policy", "weighted:0=3,1=0"}}), HasSubstr("a weight is a number from 1 to 255"));
  EXPECT_THAT(error_of({{"storage.policy", "weighted:0=0"}}), HasSubstr("a weight is a number from 1 to 255"));
  EXPECT_THAT(error_of({{"storage.policy", "weighted:0=3,0=1"}}), HasSubstr("NUMA node 0 has two weights"));
  EXPECT_THAT(error_of({{"storage.policy", "weighted:"}}), HasSubstr("node=weight"));
  const Plan plan = plan_of({{"storage.policy", "weighted:1=1,0=3"}});
  EXPECT_EQ(plan.base.storage.policy.weights, (std::vector<std::pair<int, int>>{{0, 3}, {1, 1}}));
}

TEST(Checks, NodeListsHaveNoGapsInTheirTextAndNameEachNodeOnce) {
  EXPECT_THAT(error_of({{"storage.policy", "bind:0,,1"}}), HasSubstr("expected NUMA nodes, as in"));
  EXPECT_THAT(error_of({{"storage.policy", "bind:0,"}}), HasSubstr("expected NUMA nodes, as in"));
  EXPECT_THAT(error_of({{"storage.policy", "interleave:0,1,0"}}), HasSubstr("names a node twice"));
  EXPECT_THAT(error_of({{"storage.policy", "bind:0-2,1"}}), HasSubstr("names a node twice"));
  EXPECT_THAT(error_of({{"storage.policy", "bind:3-1"}}), HasSubstr("runs backwards"));
  EXPECT_THAT(error_of({{"storage.policy", "bind:1024"}}), HasSubstr("from 0 to 1023"));
  EXPECT_EQ(plan_of({{"storage.policy", "bind:0,2"}}).base.storage.policy.nodes, (std::vector<int>{0, 2}));
}

std::vector<Setting> a3(const char* joint) {
  return {{"experiment.factor", "storage.copies"},
          {"experiment.arms", R"({"one": "one", "per-numa-node": "per-numa-node"})"},
          {"experiment.joint_arms", joint}};
}

TEST(Experiment, AJointArmChangesTwoKeysByName) {
  const Plan plan = plan_of(a3(R"({"consumer": {"storage.policy": "consumer", "device.rank_map": "shard-near"}})"));
  ASSERT_EQ(plan.arms.size(), 3u);
  EXPECT_FALSE(plan.arms_share_allocation);
  EXPECT_TRUE(plan.arms[1].joint_keys.empty());
  const Arm& consumer = plan.arms[2];
  EXPECT_EQ(consumer.name, "consumer");
  EXPECT_EQ(consumer.joint_keys, (std::vector<std::string>{"storage.policy", "device.rank_map"}));
  EXPECT_EQ(consumer.scenario.storage.policy.kind, PolicyKind::consumer);
  EXPECT_EQ(consumer.scenario.device.rank_map, "shard-near");
  EXPECT_EQ(consumer.scenario.storage.copies, Copies::one);  // the baseline's value of the factor
  for (const Arm& arm : plan.arms) EXPECT_TRUE(arm.research) << arm.name;
  EXPECT_THAT(plan.arms[1].provenance, HasSubstr("a copy on each NUMA node"));
  EXPECT_THAT(consumer.provenance, HasSubstr("policy consumer set before registration"));
  EXPECT_NE(plan.expanded_json.find("joint_arms"), std::string::npos);
}

TEST(Experiment, OnlyWhatIsNamedMayChangeTogether) {
  EXPECT_THAT(error_of(a3(R"({"x": {"storage.policy": "bind:1", "device.rank_map": "shard-near"}})")),
              HasSubstr("all that may change together beside it is storage.policy consumer with device.rank_map "
                        "shard-near, found storage.policy"));
  EXPECT_THAT(error_of(a3(R"({"x": {"storage.policy": "consumer"}})")), HasSubstr("an arm changes one key"));
  EXPECT_THAT(error_of(a3(R"({"x": {}})")), HasSubstr("found nothing"));
  EXPECT_THAT(error_of(a3(R"({"x": {"storage.policy": "consumer", "device.rank_map": "shard-near", "seed": 2}})")),
              HasSubstr("an arm changes one key"));
  EXPECT_THAT(error_of(a3(R"({"one": {"storage.policy": "consumer", "device.rank_map": "shard-near"}})")),
              HasSubstr("one names two arms"));
  auto other = a3(R"({"x": {"storage.policy": "consumer", "device.rank_map": "shard-near"}})");
  other[0].value = "storage.policy";
  other[1].value = R"({"A": "bind:0", "B": "bind:1"})";
  EXPECT_THAT(error_of(other), HasSubstr("change this key alone"));
  EXPECT_THAT(error_of({other[2]}), HasSubstr("experiment.factor, which is missing"));
}

TEST(Checks, PinnedRoundingIsOfPrivateMemory) {
  EXPECT_THAT(error_of({{"storage.pinned_rounding", "power-of-two"}}), HasSubstr("anon or anon-thp, found shm"));
  EXPECT_THAT(error_of({{"storage.pinned_rounding", "twice"}}), HasSubstr("power-of-two"));
}

TEST(Checks, WorkloadsHaveTokens) {
  EXPECT_THAT(error_of({{"workload.batches", "[]"}}), HasSubstr("workload.batches: expected a list"));
  EXPECT_THAT(error_of({{"workload.batches", "[{}]"}}), HasSubstr("no replica has a token"));
  EXPECT_THAT(error_of({{"workload.batches.0.replica", "2"}}), HasSubstr("replica 2 does not exist"));
  EXPECT_THAT(error_of({{"workload.tokens.kind", "file"}}), HasSubstr("needs workload.tokens.file"));
  EXPECT_THAT(error_of({{"workload.tokens.file", "x"}}), HasSubstr("use kind file"));
  EXPECT_THAT(error_of({{"workload.tokens.kind", "constant"}, {"workload.tokens.constant", "129280"}}),
              HasSubstr("out of the vocabulary (0..129279)"));
}

TEST(Checks, ActiveReadersAreRanksOfALookup) {
  const Setting lookup{"workload.kind", "lookup"};
  const auto reads = [&](const char* value) {
    const Plan plan = plan_of({lookup, {"workload.active_readers", value}});  // TP2 x DP2
    std::vector<int> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      if (plan.base.workload.active_readers.reads(rank)) ranks.push_back(rank);
    }
    return ranks;
  };
  EXPECT_EQ(reads("all"), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(reads("1"), (std::vector<int>{0}));
  EXPECT_EQ(reads("4"), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(reads("[3, 0]"), (std::vector<int>{0, 3}));
  const auto refused = [&](const char* value) { return error_of({lookup, {"workload.active_readers", value}}); };
  EXPECT_THAT(refused("0"), HasSubstr("expected all, a number of ranks from 1 to 4095, or a list of ranks"));
  EXPECT_THAT(refused("0"), HasSubstr("found 0"));
  EXPECT_THAT(refused("5"), HasSubstr("workload.active_readers 5: there are 4 ranks"));
  EXPECT_THAT(refused("[0, 4]"), HasSubstr("names rank 4: there are 4 ranks, counted from 0"));
  EXPECT_THAT(refused("[1, 1]"), HasSubstr("names rank 1 twice"));
  EXPECT_THAT(refused("[]"), HasSubstr("expected all, a number"));
  EXPECT_THAT(refused("1.5"), HasSubstr("expected all, a number"));
  EXPECT_THAT(refused("some"), HasSubstr("expected all, a number"));
  EXPECT_THAT(error_of({{"workload.active_readers", "2"}}), HasSubstr("is for workload.kind lookup, found steps"));
  EXPECT_THAT(error_of({lookup, {"workload.active_readers", "[2]"}, {"workload.batches.0.replica", "0"}}),
              HasSubstr("no reading rank has a token"));
  // What was read is written the same way: how ranks get it.
  for (const char* value : {"all", "3", "[3, 0]"}) {
    const Plan plan = plan_of({lookup, {"workload.active_readers", value}});
    EXPECT_EQ(to_json(scenario_from_json(to_json(plan.base))), to_json(plan.base)) << value;
  }
}

TEST(Checks, TheLookupAloneHasNoModelAroundIt) {
  const Setting lookup{"workload.kind", "lookup"};
  EXPECT_NO_THROW(plan_of({lookup}));
  EXPECT_THAT(error_of({lookup, {"prefetch.submit", "at_consume"}}), HasSubstr("nothing consumes the rows; use early"));
  EXPECT_THAT(error_of({lookup, {"prefetch.streams", "per_layer"}}), HasSubstr("use fifo"));
  EXPECT_THAT(error_of({lookup, {"experiment.controls.s.storage.backing", "stub"}}),
              HasSubstr("control s: storage.backing stub with workload.kind lookup"));
  EXPECT_THAT(error_of({lookup, {"fault.kind", "late_lookup"}, {"fault.stage", "in_step"}}), HasSubstr("skip_lookup"));
  EXPECT_THAT(error_of({{"workload.window_launches", "4"}}), HasSubstr("is for workload.kind lookup, found steps"));
  auto settings = experiment("prefetch.grid_cap", R"({"A": 1, "B": 2})");
  settings.push_back(lookup);
  settings.push_back({"experiment.inject.stage", "front"});
  settings.push_back({"experiment.inject.percent", "10"});
  settings.push_back({"experiment.inject.arm", "B"});
  EXPECT_THAT(error_of(settings), HasSubstr("no other stage than lookup"));
}

TEST(Checks, FaultsNameAStageAndARank) {
  EXPECT_THAT(error_of({{"fault.kind", "kill"}}), HasSubstr("needs fault.stage"));
  EXPECT_THAT(error_of({{"fault.stage", "in_step"}}), HasSubstr("without fault.kind"));
  EXPECT_THAT(error_of({{"fault.kind", "skip_lookup"}, {"fault.stage", "before_map"}}), HasSubstr("in_step"));
  EXPECT_THAT(error_of({{"fault.kind", "kill"}, {"fault.stage", "in_step"}, {"fault.rank", "4"}}),
              HasSubstr("there are 4 ranks"));
  EXPECT_THAT(error_of({{"fault.kind", "hang"}, {"fault.stage", "in_step"}, {"fault.rank", "-1"}}),
              HasSubstr("supervisor"));
  const Fault fault =
      plan_of({{"fault.kind", "kill"}, {"fault.stage", "during_load"}, {"fault.rank", "3"}}).arms[0].scenario.fault;
  EXPECT_EQ(fault.stage, "during_load");
  EXPECT_EQ(fault.rank, 3);
}

TEST(Checks, ModelFitsItsBackbone) {
  EXPECT_THAT(error_of({{"model.backbone.layers", "14"}}), HasSubstr("at least 15"));
  EXPECT_THAT(error_of({{"model.backbone.preset", "null"}}), HasSubstr("model.backbone.layers"));
  EXPECT_THAT(error_of({{"model.preset", "tiny"}}), HasSubstr("table_scale"));
  EXPECT_THAT(error_of({{"device.rank_map", "[0, 1]"}}), HasSubstr("lists 2 devices for 4 ranks"));
}

TEST(BindRanks, TakesATextANodeOrAListOfNodes) {
  const auto bound = [](const char* value) {
    return plan_of({{"storage.bind_ranks", value}}).arms[0].scenario.storage.bind_ranks;
  };
  EXPECT_EQ(bound("device-local"), "device-local");
  EXPECT_EQ(bound("0,2-3"), "0,2-3");
  EXPECT_EQ(bound("\"0,1\""), "0,1");
  EXPECT_EQ(bound("1"), "1");
  EXPECT_EQ(bound("[1, 0]"), "1,0");  // the ranks take them in this turn
  EXPECT_EQ(bound("[2.0]"), "2");
  for (const char* value : {"-1", "[-1]", "[]", "1.5", "1024", "true"}) {
    EXPECT_THAT(error_of({{"storage.bind_ranks", value}}), HasSubstr("expected none, device-local, or NUMA nodes"))
        << value;
  }
  EXPECT_THAT(error_of({{"storage.bind_ranks", "0,"}}), HasSubstr("found \"0,\""));
  EXPECT_THAT(error_of({{"storage.bind_ranks", "\"\""}}), HasSubstr("found \"\""));
  EXPECT_THAT(error_of({{"storage.bind_ranks", "0-"}}), HasSubstr("found \"0-\""));
  EXPECT_THAT(error_of({{"storage.bind_ranks", "[1, 1]"}}), HasSubstr("names a node twice"));
}

}  // namespace
}  // namespace eb::plan
