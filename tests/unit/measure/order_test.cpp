#include "harness/measure/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "harness/base/error.h"

namespace eb::measure {
namespace {

using Order = std::vector<std::size_t>;
const Order kAbba = {0, 1, 1, 0};
const Order kBaab = {1, 0, 0, 1};

plan::Plan two_arms(bool share) {
  plan::Plan plan;
  plan.arms_share_allocation = share;
  plan.experiment.blocks = 2;
  plan.experiment.pairs = 2;
  for (const char* name : {"A", "B"}) {
    plan::Arm arm;
    arm.name = name;
    arm.scenario.workload.steps = 3;
    arm.scenario.workload.warmup = 8;
    arm.scenario.workload.burn_in = 2;
    plan.arms.push_back(arm);
  }
  return plan;
}

TEST(Order, TwoArmsGiveAbbaOrBaabBalancedOverNeighbours) {
  std::set<Order> first;
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    for (int block = 0; block < 8; block += 2) {
      const Order one = block_order(2, 0, block, seed);
      const Order two = block_order(2, 0, block + 1, seed);
      EXPECT_TRUE(one == kAbba || one == kBaab);
      EXPECT_NE(one, two);
      first.insert(one);
    }
  }
  EXPECT_EQ(first.size(), 2U);  // the seed decides
}

TEST(Order, SameSeedSameOrder) {
  for (int block = 0; block < 8; ++block) EXPECT_EQ(block_order(5, 1, block, 9), block_order(5, 1, block, 9));
}

TEST(Order, MoreArmsAreCompleteBlocksInChangingOrder) {
  std::set<Order> seen;
  for (int block = 0; block < 20; ++block) {
    Order order = block_order(4, 0, block, 3);
    seen.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (Order{0, 1, 2, 3}));
  }
  EXPECT_GT(seen.size(), 5U);
}

TEST(Order, PairsOfAllocationsAreAbba) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) EXPECT_NE(pair_order(2, 0, seed), pair_order(2, 1, seed));
}

TEST(Schedule, SharedAllocationAlternatesInsideOneRerollAPair) {
  const plan::Plan plan = two_arms(true);
  const auto schedule = make_schedule(plan);
  ASSERT_EQ(schedule.size(), 2U);
  EXPECT_EQ(schedule[1].pair, 1);
  ASSERT_EQ(schedule[0].blocks.size(), 2U);
  const auto& block = schedule[0].blocks[0];
  ASSERT_EQ(block.size(), 5U);
  EXPECT_EQ(block[0].kind, SlotKind::burn_in);  // a burn-in opens the block
  EXPECT_EQ(block[0].steps, 2);
  int checked_a = 0;
  int checked_b = 0;
  for (std::size_t i = 1; i < block.size(); ++i) {
    EXPECT_EQ(block[i].kind, SlotKind::timed);
    EXPECT_EQ(block[i].steps, 3);
    (block[i].arm == 0 ? checked_a : checked_b) += block[i].check ? 1 : 0;
  }
  EXPECT_EQ(checked_a, 1);  // the last timed slot of each arm, and only that one
  EXPECT_EQ(checked_b, 1);
  EXPECT_TRUE(block[4].check);
  EXPECT_FALSE(block[1].check);
  ASSERT_EQ(schedule[0].checks.size(), 2U);
  EXPECT_TRUE(schedule[0].checks[0].check && schedule[0].checks[0].check_hidden);
}

TEST(Schedule, PlacementArmsAllocateAnew) {
  const auto schedule = make_schedule(two_arms(false));
  ASSERT_EQ(schedule.size(), 4U);
  EXPECT_NE(schedule[0].allocated_for, schedule[1].allocated_for);
  EXPECT_EQ(schedule[0].allocated_for, schedule[3].allocated_for);  // ABBA over the two pairs
  EXPECT_EQ(schedule[0].arms.size(), 1U);
}

TEST(Schedule, ControlsAreNeverAmongTheJudgedArms) {
  plan::Plan plan = two_arms(true);
  plan::Arm inside = plan.arms[0];
  inside.name = "cap";
  inside.control = true;
  inside.overrides = {{"prefetch.grid_cap", "1"}};
  plan::Arm outside = inside;
  outside.name = "stub";
  outside.overrides = {{"storage.backing", "\"stub\""}};
  plan.arms.push_back(inside);
  plan.arms.push_back(outside);
  const auto schedule = make_schedule(plan);
  ASSERT_EQ(schedule.size(), 4U);  // two pairs, each with a re-roll of its own for the stub
  EXPECT_EQ(schedule[0].arms, (Order{0, 1}));
  EXPECT_EQ(schedule[0].controls, (Order{2}));
  EXPECT_EQ(schedule[0].blocks[0].back().arm, 2U);
  EXPECT_EQ(schedule[1].allocated_for, 3U);
}

TEST(Schedule, AnObservedSlotOfEachArmFollowsTheBlocks) {
  plan::Plan plan = two_arms(true);
  plan::Arm control = plan.arms[0];
  control.name = "cap";
  control.control = true;
  control.overrides = {{"prefetch.grid_cap", "1"}};
  plan.arms.push_back(control);
  for (const RerollPlan& reroll : make_schedule(plan)) {
    ASSERT_EQ(reroll.observed.size(), 2U) << "controls are not observed";
    EXPECT_NE(reroll.observed[0].arm, reroll.observed[1].arm);
    for (const SlotPlan& slot : reroll.observed) {
      EXPECT_EQ(slot.kind, SlotKind::observed);
      EXPECT_EQ(slot.steps, 3);
      EXPECT_LT(slot.block, 0) << "of no block, so that no block's figures can hold it";
    }
  }
  plan.experiment.observed_pass = false;
  for (const RerollPlan& reroll : make_schedule(plan)) EXPECT_TRUE(reroll.observed.empty());
}

TEST(Schedule, CoresidentArmsAlternateInsideOneRerollThatHoldsBothTables) {
  plan::Plan plan = two_arms(false);
  plan.experiment.coresident = true;
  const auto schedule = make_schedule(plan);
  ASSERT_EQ(schedule.size(), 2U) << "one re-roll a pair";
  EXPECT_EQ(schedule[0].arms, (Order{0, 1}));
  Order sorted = schedule[0].coresident;
  EXPECT_NE(sorted, schedule[1].coresident) << "which arm allocates first alternates over pairs";
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (Order{0, 1}));
  for (const auto& block : schedule[0].blocks) {
    Order order;
    for (const SlotPlan& slot : block) {
      if (slot.kind == SlotKind::timed) order.push_back(slot.arm);
    }
    EXPECT_TRUE(order == kAbba || order == kBaab);
  }
}

TEST(Schedule, BlocksEndWithTheBareGatherOfEachArm) {
  plan::Plan plan = two_arms(true);
  const auto calibrations = [&] {
    std::vector<SlotPlan> found;
    const std::vector<RerollPlan> schedule = make_schedule(plan);
    for (const SlotPlan& slot : schedule[0].blocks[0]) {
      if (slot.kind == SlotKind::calibration) found.push_back(slot);
    }
    return found;
  };
  EXPECT_TRUE(calibrations().empty()) << "steps of a model: only where asked for";
  plan.experiment.bw_effective = true;
  EXPECT_EQ(calibrations().size(), 2U);
  plan.experiment.bw_effective.reset();
  for (plan::Arm& arm : plan.arms) arm.scenario.workload.kind = plan::WorkloadKind::lookup;
  plan.arms[1].scenario.workload.steps = 100;
  const auto found = calibrations();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].arm, 0U);
  EXPECT_EQ(found[0].steps, 3);
  EXPECT_EQ(found[1].arm, 1U);
  EXPECT_EQ(found[1].steps, 32) << "at most that many windows";
  EXPECT_FALSE(found[0].check);
  EXPECT_EQ(make_schedule(plan)[0].blocks[0].back().kind, SlotKind::calibration);
  plan.arms[0].scenario.storage.backing = plan::Backing::stub;
  EXPECT_EQ(calibrations().size(), 1U) << "no table, nothing to gather";
  plan.experiment.bw_effective = false;
  EXPECT_TRUE(calibrations().empty());
}

TEST(Schedule, RefusesWhatCannotRun) {
  plan::Plan plan = two_arms(true);
  plan.experiment.blocks = 20000;
  EXPECT_THROW((void)make_schedule(plan), Error);
  plan.experiment.blocks = 1;
  plan.arms.clear();
  EXPECT_THROW((void)make_schedule(plan), Error);
}

}  // namespace
}  // namespace eb::measure
