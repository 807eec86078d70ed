// Looking on changes nothing: with and without instrumentation the same operations depend on each other in the same
// way.
#include <gtest/gtest.h>

#include "tests/unit/rank/step_fixture.h"

namespace eb::rank::test {
namespace {

std::vector<RankOutcome> graphs(plan::TableMode mode, plan::Submit submit, plan::Streams streams, bool instrument) {
  StepRun run;
  run.scenario = two_layers(2, 2, mode);
  run.scenario.parallel.ep = 2;
  run.scenario.model.backbone.expert_bytes_per_token = 64;
  run.scenario.prefetch.submit = submit;
  run.scenario.prefetch.streams = streams;
  run.device = Device::fake;
  run.instrument = instrument;
  run.slots = {timed_slot(4)};
  auto ranks = run_ranks(run);
  expect_ok(ranks);
  return ranks;
}

TEST(StepGraph, RecordingAddsNoDependency) {
  for (const plan::TableMode mode : {plan::TableMode::shared, plan::TableMode::dp_sharded})
    for (const plan::Submit submit : {plan::Submit::early, plan::Submit::at_consume})
      for (const plan::Streams streams : {plan::Streams::fifo, plan::Streams::per_layer}) {
        const auto with = graphs(mode, submit, streams, true);
        const auto without = graphs(mode, submit, streams, false);
        for (std::size_t rank = 0; rank < with.size(); ++rank) {
          ASSERT_GT(with[rank].operations.size(), 50U);
          EXPECT_EQ(backend::fake::to_text(with[rank].operations), backend::fake::to_text(without[rank].operations));
          EXPECT_GT(with[rank].slots[0].events.size(), without[rank].slots[0].events.size());
          EXPECT_FALSE(without[rank].slots[0].events.empty()) << "events that something waits for stay";
        }
      }
}

// The comparison can tell programs apart.
TEST(StepGraph, SubmitTimesAndStreamFormsHaveDifferentGraphs) {
  const auto text = [](plan::Submit submit, plan::Streams streams) {
    return backend::fake::to_text(graphs(plan::TableMode::shared, submit, streams, true)[0].operations);
  };
  const std::string early = text(plan::Submit::early, plan::Streams::fifo);
  EXPECT_NE(early, text(plan::Submit::at_consume, plan::Streams::fifo));
  EXPECT_NE(early, text(plan::Submit::early, plan::Streams::per_layer));
}

// What may be captured is what nobody waits for: the fake backend refuses a wait, a lookup or a collective inside a
// segment, and a wait for an event that a segment records. The order of work stays, but for the copy of the masks.
TEST(StepGraph, SegmentsHoldNothingThatOthersWaitFor) {
  for (const plan::TableMode mode : {plan::TableMode::private_, plan::TableMode::shared, plan::TableMode::dp_sharded}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const plan::Submit submit : {plan::Submit::early, plan::Submit::at_consume}) {
        StepRun run;
        run.scenario = two_layers(2, 2, mode);
        run.scenario.parallel.ep = 2;
        run.scenario.parallel.sequence_parallel = sequence_parallel;
        run.scenario.model.backbone.expert_bytes_per_token = 64;
        run.scenario.prefetch.submit = submit;
        run.device = Device::fake;
        run.slots = {checked_slot(3), timed_slot(4, 3)};
        const auto plain = run_ranks(run);
        run.scenario.prefetch.graph = "piecewise";
        const auto pieces = run_ranks(run);
        expect_ok(plain);
        expect_ok(pieces);
        for (std::size_t rank = 0; rank < plain.size(); ++rank) {
          EXPECT_EQ(plain[rank].facts[0]["digests"], pieces[rank].facts[0]["digests"]);
          EXPECT_EQ(plain[rank].operations.size() + 7, pieces[rank].operations.size());
          EXPECT_EQ(plain[rank].slots[1].events.size(), pieces[rank].slots[1].events.size());
        }
      }
    }
  }
}

// A planted fault comes in the middle of a segment, and is found all the same.
TEST(StepGraph, LateLookupWithSegmentsIsFound) {
  StepRun run;
  run.scenario = two_layers(2, 1, plan::TableMode::private_);
  run.scenario.prefetch.graph = "piecewise";
  run.scenario.fault = {"late_lookup", "in_step", 0, 2};
  run.device = Device::fake;
  control::RunSlot timed = timed_slot(4, 3);
  timed.check = true;
  run.slots = {checked_slot(2), timed};
  const auto ranks = run_ranks(run);
  EXPECT_EQ(static_cast<int>(ranks[0].exit), 5) << ranks[0].error;
}

TEST(StepGraph, OneRankHasSegmentsToo) {
  StepRun run;
  run.scenario = two_layers(1, 1, plan::TableMode::private_);
  run.scenario.prefetch.graph = "piecewise";
  run.device = Device::fake;
  run.slots = {checked_slot(3), timed_slot(4, 3)};
  expect_ok(run_ranks(run));
}

}  // namespace
}  // namespace eb::rank::test
