// Story: a host that runs ahead must not start an at_consume lookup early. Layer 0 is long here, so that an early start
// would show.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/rank/step_fixture.h"

namespace eb::rank::test {
namespace {

StepRun long_layer_0(Device device, plan::Submit submit, plan::Streams streams) {
  StepRun run;
  run.scenario = two_layers(1, 2, plan::TableMode::shared);
  run.scenario.prefetch.submit = submit;
  run.scenario.prefetch.streams = streams;
  run.scenario.workload.batches = {batch({64}, 0)};
  run.device = device;
  if (device == Device::cpu)  // some ms of real GEMMs a layer
    run.scenario.model.backbone.weight_bytes_per_layer = 2 * 64 * 20'000;
  run.script.duration_ns["backbone.l0"] = 5'000'000;
  run.slots = {timed_slot(4)};
  return run;
}

class Release : public testing::TestWithParam<std::tuple<Device, plan::Streams>> {};

TEST_P(Release, NoLookupStartsBeforeIt) {
  const auto [device, streams] = GetParam();
  const auto ranks = run_ranks(long_layer_0(device, plan::Submit::at_consume, streams));
  expect_ok(ranks);
  for (const RankOutcome& rank : ranks) {
    const SlotResult& slot = rank.slots.at(0);
    const auto front = times_of(slot, EventKind::backbone_done, 0);
    for (const int layer : {1, 3}) {
      const auto release = times_of(slot, EventKind::release, layer);
      const auto start = times_of(slot, EventKind::lookup_start, layer);
      ASSERT_EQ(release.size(), 4U);
      ASSERT_EQ(start.size(), 4U);
      for (std::size_t step = 0; step < 4; ++step) {
        EXPECT_GE(start[step], release[step]) << "layer " << layer << " step " << step;
        EXPECT_GE(release[step], front[step]) << "layer " << layer << " step " << step;
      }
    }
  }
}

// The other arm: the same lookups start while layer 0 runs, or the test above could not fail.
TEST_P(Release, EarlyLookupsStartBesideLayer0) {
  const auto [device, streams] = GetParam();
  const auto ranks = run_ranks(long_layer_0(device, plan::Submit::early, streams));
  expect_ok(ranks);
  const SlotResult& slot = ranks.at(0).slots.at(0);
  EXPECT_TRUE(times_of(slot, EventKind::release, 1).empty());
  const auto front = times_of(slot, EventKind::backbone_done, 0);
  const auto start = times_of(slot, EventKind::lookup_start, 1);
  ASSERT_EQ(start.size(), 4U);
  std::size_t beside = 0;
  for (std::size_t step = 0; step < 4; ++step) beside += start[step] < front[step] ? 1U : 0U;
  if (device == Device::fake)
    EXPECT_EQ(beside, 4U);
  else
    EXPECT_GE(beside, 1U) << "a loaded machine may delay some, not all";
}

INSTANTIATE_TEST_SUITE_P(All, Release,
                         testing::Combine(testing::Values(Device::cpu, Device::fake),
                                          testing::Values(plan::Streams::fifo, plan::Streams::per_layer)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Device::cpu ? "cpu" : "fake") + "_" +
                                  plan::name(std::get<1>(info.param));
                         });

// Virtual time: what early and at_consume look like to the nanosecond. One table, tokens on one rank, every operation
// 10 us but layer 0 with its two GEMMs of 500 us and the lookup of 200 us.
TEST(Release, FakeTimelineOfBothArms) {
  for (const plan::Submit submit : {plan::Submit::early, plan::Submit::at_consume}) {
    StepRun run;
    run.scenario = two_layers(1, 1, plan::TableMode::private_);
    run.scenario.prefetch.submit = submit;
    run.device = Device::fake;
    run.script.host_cost_ns = 0;
    run.script.duration_ns["backbone.l0"] = 500'000;
    run.script.duration_ns["lookup"] = 200'000;
    run.slots = {timed_slot(1)};
    const auto ranks = run_ranks(run);
    expect_ok(ranks);
    const SlotResult& slot = ranks[0].slots.at(0);
    const std::int64_t ids = times_of(slot, EventKind::ids_ready).at(0);
    const std::int64_t arrival = times_of(slot, EventKind::consumer_arrival, 1).at(0);
    const std::int64_t resumed = times_of(slot, EventKind::consumer_resumed, 1).at(0);
    EXPECT_EQ(arrival - ids, 1'000'000);
    if (submit == plan::Submit::early) {
      EXPECT_EQ(times_of(slot, EventKind::lookup_start, 1).at(0), ids);
      EXPECT_EQ(times_of(slot, EventKind::lookup_start, 3).at(0), ids + 200'000) << "one FIFO";
      EXPECT_EQ(resumed, arrival);
    } else {
      EXPECT_EQ(times_of(slot, EventKind::lookup_start, 1).at(0), arrival);
      EXPECT_EQ(resumed, arrival + 200'000) << "the whole lookup is exposed";
      // On a busy machine time passes between any two records: the wait is counted from ahead of the release.
      const auto place = [&](EventKind kind) {
        return std::ranges::find_if(slot.events, [&](const EventRecord& event) {
          return event.kind == static_cast<std::uint16_t>(kind) && event.layer == 1;
        });
      };
      EXPECT_LT(place(EventKind::consumer_arrival), place(EventKind::release));
    }
  }
}

// prefetch.order table: a sort of 2 ms. The lookup behind a release finds its rows sorted; early, the second lookup's
// sort runs beside the first lookup, and only the first lookup has a sort in its time.
TEST(SortAhead, ASortIsOffTheWayWhereItCanBe) {
  for (const plan::Submit submit : {plan::Submit::at_consume, plan::Submit::early}) {
    StepRun run = long_layer_0(Device::fake, submit, plan::Streams::fifo);
    run.scenario.prefetch.order = plan::Order::table;
    run.script.duration_ns["sort"] = 2'000'000;
    run.script.duration_ns["lookup"] = 3'000'000;
    const auto ranks = run_ranks(run);
    expect_ok(ranks);
    const SlotResult& slot = ranks.at(0).slots.at(0);
    for (const int layer : {1, 3}) {
      const auto start = times_of(slot, EventKind::lookup_start, layer);
      const auto done = times_of(slot, EventKind::lookup_done, layer);
      ASSERT_EQ(start.size(), 4U);
      const bool first_of_early = submit == plan::Submit::early && layer == 1;
      for (std::size_t step = 0; step < 4; ++step) {
        const std::int64_t took = done[step] - start[step];
        if (first_of_early) {
          EXPECT_GT(took, 4'900'000) << "step " << step;
        } else {
          EXPECT_LT(took, 3'100'000) << "layer " << layer << " step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace eb::rank::test
