#include "harness/measure/timeline.h"

#include <gtest/gtest.h>

#include "harness/base/error.h"
#include "tests/unit/measure/synthetic.h"

namespace eb::measure {
namespace {

using K = rank::EventKind;

TEST(Timeline, QuantitiesOfAScriptedStep) {
  Script script;
  scripted_step(script, 5, 10000);
  scripted_step(script, 6, 20000);
  const auto steps = build_timeline(script.events, true, 0);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].step, 5U);
  ASSERT_EQ(steps[0].lookups.size(), 2U);
  const LookupTimes& one = steps[0].lookups[0];
  EXPECT_EQ(one.layer, 1);
  EXPECT_EQ(one.queue_ns(), 10);  // ids ready at 90, started at 100
  EXPECT_EQ(one.length_ns(), 300);
  EXPECT_EQ(one.exposed_ns(), 150);  // c 250, f 400
  const LookupTimes& two = steps[0].lookups[1];
  EXPECT_EQ(two.queue_ns(), 320);  // ready at 90, behind lookup 1 until 410
  EXPECT_EQ(two.fifo_residual_ns(), 10);
  EXPECT_EQ(two.exposed_ns(), 0);
  EXPECT_EQ(steps[1].lookups[0].previous_done_ns, 10600);  // the FIFO goes on over steps
}

TEST(Timeline, ReleaseAndSubmissionAndStagingHoldALookupBack) {
  Script script;
  scripted_step(script, 0, 10000);
  scripted_step(script, 1, 20000);
  script.step(2)
      .at(K::step_start, -1, 30000)
      .at(K::ids_ready, -1, 30010)
      .at(K::release, 1, 30500)
      .at(K::lookup_start, 1, 30510, 30020)
      .at(K::lookup_done, 1, 30600)
      .at(K::lookup_start, 14, 30610, 30300)
      .at(K::lookup_done, 14, 30700)
      .at(K::step_done, -1, 31000);
  const auto steps = build_timeline(script.events, true, 0);
  EXPECT_EQ(steps[2].lookups[0].queue_ns(), 10);          // from the release
  EXPECT_EQ(steps[2].lookups[0].inputs_ready_ns, 30020);  // the host submitted after the ids were ready
  EXPECT_EQ(steps[2].lookups[1].ready_ns, 30300);         // no release: from the submission
  Script late;
  scripted_step(late, 0, 10000);
  scripted_step(late, 1, 10200);
  // Step 1's lookup 14 overwrites what step 0 read until 10725; its ids were ready at 10290.
  EXPECT_EQ(build_timeline(late.events, true, 0)[1].lookups[1].inputs_ready_ns, 10725);
}

TEST(Timeline, PerLayerStreamsHaveNoFifo) {
  Script script;
  scripted_step(script, 0, 10000);
  EXPECT_EQ(build_timeline(script.events, false, 0)[0].lookups[1].previous_done_ns, kNoTime);
}

TEST(Wait, PartsAddUpInTheirOrder) {
  LookupTimes lookup;
  lookup.arrival_ns = 100;
  lookup.done_ns = 1000;
  lookup.next_enqueued_ns = 200;
  lookup.inputs_ready_ns = 600;
  const ExposedWait wait = split_wait(lookup, 500);
  EXPECT_EQ(wait.host_late_ns, 100);
  EXPECT_EQ(wait.peer_late_ns, 300);
  EXPECT_EQ(wait.other_ns, 100);
  EXPECT_EQ(wait.recoverable_ns, 400);
  EXPECT_EQ(wait.host_late_ns + wait.peer_late_ns + wait.other_ns + wait.recoverable_ns, lookup.exposed_ns());
}

TEST(Wait, AllRecoverableWhereTheMainStreamOnlyWaits) {
  LookupTimes lookup;
  lookup.arrival_ns = 100;
  lookup.done_ns = 1000;
  lookup.next_enqueued_ns = 20;
  lookup.inputs_ready_ns = 30;
  EXPECT_EQ(split_wait(lookup, kNoTime).recoverable_ns, 900);
  EXPECT_EQ(split_wait(lookup, 5000).recoverable_ns, 0);  // a peer comes later still
  EXPECT_EQ(split_wait(lookup, 5000).peer_late_ns, 900);
}

TEST(Wait, NoneWhereTheLookupWasDoneInTime) {
  LookupTimes lookup;
  lookup.arrival_ns = 100;
  lookup.done_ns = 90;
  lookup.next_enqueued_ns = 400;
  const ExposedWait wait = split_wait(lookup, 700);
  EXPECT_EQ(wait.host_late_ns + wait.peer_late_ns + wait.other_ns + wait.recoverable_ns, 0);
}

TEST(Timeline, BrokenEventsAreNamed) {
  Script no_end;
  no_end.step(3).at(K::step_start, -1, 10);
  try {
    (void)build_timeline(no_end.events, true, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 2: slot 0 step 3 has no step_done event");
  }
  Script twice;
  scripted_step(twice, 0, 1000);
  scripted_step(twice, 0, 1000);
  EXPECT_THROW((void)build_timeline(twice.events, true, 0), Error);
  Script backwards;
  backwards.at(K::step_start, -1, 10).at(K::step_done, -1, 5);
  EXPECT_THROW((void)build_timeline(backwards.events, true, 0), Error);
  EXPECT_TRUE(build_timeline({}, true, 0).empty());
}

}  // namespace
}  // namespace eb::measure
