// Story: the lookup alone. Windows of many launches with ids of their own, lone launches apart, idle ranks, and the
// bare gather beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/unit/rank/step_fixture.h"

namespace eb::rank::test {
namespace {

StepRun lookup_run(int tp, int dp, plan::TableMode mode, Device device = Device::fake) {
  StepRun run;
  run.scenario = two_layers(tp, dp, mode);
  run.scenario.workload.kind = plan::WorkloadKind::lookup;
  run.device = device;
  run.script.host_cost_ns = 0;
  return run;
}

control::RunSlot bare_slot(std::int64_t steps, std::int64_t first_step = 0) {
  control::RunSlot slot = timed_slot(steps, first_step);
  slot.bare = true;
  return slot;
}

std::size_t operations(const RankOutcome& rank, const std::string& name) {
  return static_cast<std::size_t>(
      std::ranges::count_if(rank.operations, [&](const auto& one) { return one.name == name; }));
}

// 10 us a launch: a first trial of one, then 1.15 * 200 / 10 launches a window, which are long enough.
TEST(Windows, TakeAsManyLaunchesAsFillTheirLength) {
  StepRun run = lookup_run(1, 1, plan::TableMode::private_);
  run.slots = {timed_slot(3)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  const SlotResult& slot = ranks[0].slots.at(0);
  EXPECT_EQ(slot.window_launches, 23);
  for (const int layer : {1, 3}) {
    const auto start = times_of(slot, EventKind::lookup_start, layer);
    const auto done = times_of(slot, EventKind::lookup_done, layer);
    ASSERT_EQ(start.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(done[i] - start[i], 230'000);
    const auto alone = times_of(slot, EventKind::launch_start, layer);
    const auto ended = times_of(slot, EventKind::launch_done, layer);
    ASSERT_EQ(alone.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(ended[i] - alone[i], 10'000);
    EXPECT_LE(ended.back(), start.front()) << "lone launches come before the windows";
  }
  // One window follows another without a gap, and one table the other.
  const auto starts = times_of(slot, EventKind::lookup_start, 1);
  EXPECT_EQ(starts[1] - starts[0], 2 * 230'000);
  // Trials (3 x (1 + 23)), three windows, three lone launches; no work of a model.
  EXPECT_EQ(operations(ranks[0], "lookup.l1"), 3U * 24 + 3 * 23 + 3);
  for (const char* none : {"backbone.l0", "wkv.l1", "gate.l1", "gather.l1"}) EXPECT_EQ(operations(ranks[0], none), 0U);
  const auto& facts = ranks[0].facts.at(0);
  EXPECT_EQ(facts["window"]["launches"], 23);
  EXPECT_EQ(facts["window"]["short_windows"], 0);
  EXPECT_EQ(facts["lookups"][0]["rows"], 3 * 23 * 8 * 8) << "3 windows of 23 launches of 8 tokens x 8 heads";
}

TEST(Windows, AStatedNumberOfLaunchesIsTaken) {
  StepRun run = lookup_run(1, 1, plan::TableMode::private_);
  run.scenario.workload.window_launches = 4;
  run.slots = {timed_slot(2)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  EXPECT_EQ(ranks[0].slots[0].window_launches, 4);
  EXPECT_EQ(operations(ranks[0], "lookup.l1"), 2U * 4 + 2);
  EXPECT_EQ(ranks[0].facts[0]["window"]["short_windows"], 4) << "two windows of two tables, of 40 us each";
}

TEST(Windows, BelowTenTicksOfTheClockAreAnError) {
  StepRun run = lookup_run(1, 1, plan::TableMode::private_);
  run.scenario.workload.window_launches = 1;
  run.script.duration_ns["lookup.l3"] = 9;
  run.slots = {timed_slot(2)};
  auto ranks = run_ranks(run);
  EXPECT_EQ(ranks[0].exit, Exit::failure);
  EXPECT_NE(ranks[0].error.find("layer 3, window 0: 1 launches took 9 ns, below 10 ticks"), std::string::npos)
      << ranks[0].error;
  run.script.duration_ns["lookup.l3"] = 10;
  expect_ok(run_ranks(run));
}

TEST(Windows, EveryLaunchHasIdsOfItsOwn) {
  StepRun run = lookup_run(1, 1, plan::TableMode::private_);
  run.scenario.workload.window_launches = 2;
  run.scenario.workload.batches = {batch({40}, 0)};
  // The checked output is of the last launch of the last window: each slot length gives another one.
  std::set<std::string> digests;
  for (std::int64_t steps = 1; steps <= 3; ++steps) {
    run.slots = {checked_slot(steps)};
    const auto ranks = run_ranks(run);
    expect_ok(ranks);
    digests.insert(ranks[0].facts[0]["digests"]["ids"].get<std::string>());
  }
  EXPECT_EQ(digests.size(), 3U);
  run.scenario.workload.index_state = plan::IndexState::repeat;
  digests.clear();
  for (std::int64_t steps = 1; steps <= 3; ++steps) {
    run.slots = {checked_slot(steps, steps)};
    const auto ranks = run_ranks(run);
    expect_ok(ranks);
    digests.insert(ranks[0].facts[0]["digests"]["ids"].get<std::string>());
  }
  EXPECT_EQ(digests.size(), 1U) << "repeat: one row sequence";
}

// Arms with other grid caps or orders find other numbers of launches, and are checked on the same ids all the same.
TEST(Windows, TheCheckedRowsDoNotHangOnTheNumberOfLaunches) {
  StepRun run = lookup_run(1, 1, plan::TableMode::private_);
  std::set<std::string> rows;
  for (const int launches : {1, 2, 5, 0}) {
    run.scenario.workload.window_launches = launches;
    run.slots = {checked_slot(2)};
    const auto ranks = run_ranks(run);
    expect_ok(ranks);
    rows.insert(ranks[0].facts[0]["digests"]["rows"].get<std::string>());
  }
  EXPECT_EQ(rows.size(), 1U);
}

TEST(Windows, IdleRanksStayIdle) {
  StepRun run = lookup_run(2, 2, plan::TableMode::shared);
  run.scenario.workload.active_readers.ranks = {1, 2};
  run.slots = {checked_slot(1), timed_slot(2, 1), bare_slot(2, 3)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  for (const std::size_t rank : {0U, 3U}) {
    EXPECT_TRUE(ranks[rank].operations.empty());
    for (std::size_t slot = 0; slot < 3; ++slot) {
      EXPECT_TRUE(ranks[rank].slots[slot].events.empty());
      EXPECT_EQ(ranks[rank].slots[slot].window_launches, 0);
      EXPECT_EQ(ranks[rank].facts[slot]["window"]["reads"], false);
    }
    EXPECT_EQ(ranks[rank].facts[0]["checks"]["rows"]["compared"], 0);
  }
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_EQ(ranks[rank].slots[1].window_launches, 23);
    EXPECT_GT(ranks[rank].facts[0]["checks"]["rows"]["compared"], 0);
  }
}

TEST(Windows, TheBareGatherHasASlotOfItsOwn) {
  for (const plan::Order order : {plan::Order::token, plan::Order::table}) {
    StepRun run = lookup_run(1, 1, plan::TableMode::private_);
    run.scenario.prefetch.order = order;
    run.script.duration_ns["gather_rows"] = 8'000;
    run.slots = {bare_slot(2)};
    const auto ranks = run_ranks(run);
    expect_ok(ranks);
    const SlotResult& slot = ranks[0].slots[0];
    EXPECT_EQ(slot.window_launches, 29) << "1.15 * 200 / 8, rounded up";
    EXPECT_EQ(operations(ranks[0], "lookup.l1"), 0U);
    EXPECT_TRUE(times_of(slot, EventKind::step_start).empty());
    EXPECT_TRUE(times_of(slot, EventKind::lookup_start, 1).empty());
    const auto start = times_of(slot, EventKind::bare_start, 1);
    const auto done = times_of(slot, EventKind::bare_done, 1);
    ASSERT_EQ(start.size(), 2U);
    EXPECT_EQ(done[1] - start[1], 29 * 8'000) << "sorting is no part of it";
    EXPECT_EQ(operations(ranks[0], "sort.l1"), order == plan::Order::table ? 2U * 29 : 0U);
  }
}

TEST(Windows, StepsOfAModelCanBeCalibratedToo) {
  StepRun run = lookup_run(2, 1, plan::TableMode::private_);
  run.scenario.workload.kind = plan::WorkloadKind::steps;
  run.slots = {timed_slot(2), bare_slot(2, 2), timed_slot(2, 4)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  EXPECT_EQ(ranks[0].slots[0].window_launches, 1);
  EXPECT_GT(ranks[0].slots[1].window_launches, 1);
  EXPECT_EQ(times_of(ranks[0].slots[2], EventKind::lookup_start, 1).size(), 2U);
}

TEST(Windows, SkippedLookupsAreFound) {
  for (const Device device : {Device::cpu, Device::fake}) {
    StepRun run = lookup_run(1, 2, plan::TableMode::shared, device);
    run.scenario.fault = {"skip_lookup", "in_step", 1, 1};
    run.slots = {checked_slot(3)};
    const auto ranks = run_ranks(run);
    EXPECT_EQ(ranks[0].exit, Exit::ok) << ranks[0].error;
    EXPECT_EQ(ranks[1].exit, Exit::bad_data);
    EXPECT_NE(ranks[1].error.find("layer 1, token 0, column 0"), std::string::npos) << ranks[1].error;
    EXPECT_NE(ranks[1].error.find("the lookup did not run"), std::string::npos) << ranks[1].error;
  }
}

// Slots with extra work must not teach what the stage takes without it.
TEST(Windows, ExtraWorkStaysWhatItWasFirst) {
  StepRun run = lookup_run(1, 1, plan::TableMode::private_);
  run.scenario.workload.window_launches = 4;
  control::RunSlot injected = timed_slot(2, 2);
  injected.inject_stage = "lookup";
  injected.inject_percent = 50;
  run.slots = {timed_slot(2), injected, injected, injected};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  for (std::size_t slot = 0; slot < 4; ++slot) {
    const auto start = times_of(ranks[0].slots[slot], EventKind::lookup_start, 1);
    const auto done = times_of(ranks[0].slots[slot], EventKind::lookup_done, 1);
    EXPECT_EQ(done[0] - start[0], slot == 0 ? 40'000 : 60'000) << "slot " << slot;
  }
}

// Seen by leaving the last launch of a window out: what is there then is the rows of the one before.
TEST(Windows, TheLaunchesOfAWindowReadDifferentRows) {
  StepRun run = lookup_run(1, 1, plan::TableMode::private_);
  run.scenario.workload.window_launches = 2;
  run.scenario.workload.batches = {batch({40}, 0)};
  run.slots = {checked_slot(1)};
  // The lone launch, two of the window.
  run.script.faults = {{"lookup.l1", 3, backend::fake::Fault::Kind::skip, ""}};
  const auto ranks = run_ranks(run);
  EXPECT_EQ(ranks[0].exit, Exit::bad_data);
  EXPECT_NE(ranks[0].error.find("layer 1, token 0"), std::string::npos) << ranks[0].error;
  EXPECT_EQ(ranks[0].error.find("did not run"), std::string::npos) << "no poison is left: " << ranks[0].error;
}

struct ModeCase {
  plan::TableMode mode;
  int tp;
  int dp;
  int heads;
};

class WindowModes : public testing::TestWithParam<std::tuple<Device, ModeCase, plan::Order>> {};

// Uneven replicas and padded heads; every staging row is compared.
TEST_P(WindowModes, RowsEqualTheReference) {
  const auto& [device, c, order] = GetParam();
  StepRun run = lookup_run(c.tp, c.dp, c.mode, device);
  run.scenario.model.base.heads_per_ngram = c.heads;
  run.scenario.prefetch.order = order;
  run.scenario.workload.batches = {batch({5}, 3, 0), batch({2}, 0, 1), batch({7, 9}, 1, 1)};
  if (c.dp == 1) run.scenario.workload.batches = {batch({5}, 3), batch({}, 1)};
  run.scenario.workload.window_launches = 3;
  control::RunSlot last = timed_slot(2, 4);
  last.check = true;
  run.slots = {checked_slot(1), checked_slot(2), last};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  for (const RankOutcome& rank : ranks) {
    for (const auto& facts : rank.facts) {
      EXPECT_GT(facts["checks"]["ids"]["compared"], 0);
      EXPECT_GT(facts["checks"]["rows"]["compared"], 0);
      EXPECT_TRUE(facts["checks"]["hidden"].is_null());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WindowModes,
                         testing::Combine(testing::Values(Device::cpu, Device::fake),
                                          testing::Values(ModeCase{plan::TableMode::private_, 1, 1, 4},
                                                          ModeCase{plan::TableMode::shared, 2, 2, 4},
                                                          ModeCase{plan::TableMode::dp_sharded, 1, 2, 4},
                                                          ModeCase{plan::TableMode::dp_sharded, 2, 2, 5}),
                                          testing::Values(plan::Order::token, plan::Order::table)),
                         [](const auto& info) {
                           const ModeCase& c = std::get<1>(info.param);
                           return std::string(std::get<0>(info.param) == Device::cpu ? "cpu" : "fake") + "_tp" +
                                  std::to_string(c.tp) + "dp" + std::to_string(c.dp) + "heads" +
                                  std::to_string(c.heads) + "_" +
                                  (c.mode == plan::TableMode::private_ ? "private"
                                   : c.mode == plan::TableMode::shared ? "shared"
                                                                       : "dp_sharded") +
                                  "_" + plan::name(std::get<2>(info.param));
                         });

}  // namespace
}  // namespace eb::rank::test
