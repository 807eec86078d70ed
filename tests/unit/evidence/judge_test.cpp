#include "harness/evidence/judge.h"

#include <gtest/gtest.h>

#include "tests/unit/evidence/support.h"

namespace eb::evidence {
namespace {

TEST(Judge, BetterWorseSame) {
  EXPECT_EQ(judged(around(-0.05)).verdict, Verdict::better);
  EXPECT_EQ(judged(around(0.05)).verdict, Verdict::worse);
  EXPECT_EQ(judged(around(0.001)).verdict, Verdict::same);
  Cell rate = cell_of(around(0.05));
  rate.lower_is_better = false;
  EXPECT_EQ(judge_figures(rate, {}).verdict, Verdict::better);
}

TEST(Judge, FiguresAreThoseOfThePairs) {
  const Finding finding = judged(around(0.05));
  EXPECT_EQ(finding.pairs, 8);
  EXPECT_NEAR(finding.effect.value(), std::exp(0.05), 1e-9);
  EXPECT_LT(finding.interval->low, *finding.effect);
  EXPECT_GT(finding.interval->high, *finding.effect);
  EXPECT_NEAR(finding.sign_p, 2.0 / 256, 1e-12);
  EXPECT_LT(finding.p, 1e-6);
  EXPECT_NEAR(finding.detectable / finding.deviation, 1.15, 0.01);
}

TEST(Judge, InconclusiveSaysWhy) {
  EXPECT_EQ(judged(around(0.0, 0.05)).reason, Reason::too_wide);
  const Finding beyond = judged(around(0.03, 0.05));
  EXPECT_EQ(beyond.reason, Reason::too_wide)
      << "a point beyond delta claims nothing while its interval holds no change";
  // Clear of no change, point inside delta, interval reaching over it.
  const Finding below = judged(around(0.018, 0.006));
  EXPECT_EQ(below.verdict, Verdict::inconclusive);
  EXPECT_EQ(below.reason, Reason::below_delta);
  // Both clear of no change and wholly inside delta: the change is real and does not matter.
  EXPECT_EQ(judged(around(0.01, 0.001)).verdict, Verdict::same);
}

TEST(Judge, DeltaIsNeverBelowTheFloor) {
  const Finding finding = judged(around(0.05), {}, 0.08);
  EXPECT_TRUE(finding.delta_raised);
  EXPECT_NEAR(finding.delta, std::expm1(0.08), 1e-12);
  EXPECT_EQ(finding.verdict, Verdict::same) << "5 % is less than the machine tells from nothing";
  EXPECT_NE(finding_text(finding).find("A/A floor"), std::string::npos);
  EXPECT_FALSE(judged(around(0.05), {}, 0.001).delta_raised);
}

TEST(Judge, OnePairIsNoVerdict) {
  EXPECT_EQ(judged({0.5}).verdict, Verdict::none);
  EXPECT_EQ(judged({0.5}).reason, Reason::one_reroll);
  EXPECT_EQ(judged({}).reason, Reason::no_samples);
}

TEST(Judge, PairsFarFromNormalDisagree) {
  // One of two pairs far off: Student's t is wide, the bootstrap knows only what it saw.
  EXPECT_EQ(judged({0.05, 0.06}).reason, Reason::bootstrap_disagrees);
}

// Pairs that agree to a tenth of a per cent, of blocks that scatter by ten per cent: the bootstrap's interval is many
// times t's.
Finding judged_over_scattered_blocks(double center, int method = kMethod) {
  Cell cell = cell_of({});
  for (int i = 0; i < 8; ++i) {
    Pair pair;
    pair.pair = i;
    pair.blocks.matched = true;
    for (const double block : {-0.12, -0.06, 0.0, 0.06, 0.12}) {
      pair.blocks.a.push_back(100);
      pair.blocks.b.push_back(100 * std::exp(center + block + (i % 2 == 0 ? 0.0005 : -0.0005)));
    }
    cell.pairs.push_back(pair);
  }
  Rules rules;
  rules.method = method;
  return judge_figures(cell, rules);
}

TEST(Judge, AVerdictNeedsTheBootstrapsIntervalToSupportItToo) {
  const Finding clear = judged_over_scattered_blocks(0.1);
  ASSERT_GT(std::log(clear.bootstrap->high), std::log(clear.interval->high) + 0.01) << "the intervals have to differ";
  EXPECT_EQ(clear.verdict, Verdict::worse) << "both intervals are clear of no change";
  EXPECT_EQ(judged_over_scattered_blocks(-0.1).verdict, Verdict::better);
  EXPECT_EQ(judged_over_scattered_blocks(0.1, 1).reason, Reason::bootstrap_disagrees)
      << "as results of method 1 have it";
  // Beyond delta and clear of no change by t alone.
  const Finding near = judged_over_scattered_blocks(0.022);
  ASSERT_GT(near.interval->low, 1.0);
  ASSERT_LT(near.bootstrap->low, 1.0);
  EXPECT_EQ(near.reason, Reason::bootstrap_disagrees);
  // Within delta by t alone.
  EXPECT_EQ(judged_over_scattered_blocks(0.0).reason, Reason::bootstrap_disagrees);
}

TEST(Judge, AFailedGateDropsBothSides) {
  Cell cell = cell_of(std::vector<double>(20, 0.05));
  cell.pairs[3].gate = "clock";
  const Finding one = judge_figures(cell, {});
  EXPECT_EQ(one.dropped, 1);
  EXPECT_EQ(one.pairs, 19);
  EXPECT_EQ(one.verdict, Verdict::worse);
  cell.pairs[4].gate = cell.pairs[5].gate = "clock";
  const Finding many = judge_figures(cell, {});
  EXPECT_EQ(many.verdict, Verdict::void_);
  EXPECT_EQ(many.reason, Reason::gates_failed);
}

TEST(Judge, AllPairsDroppedIsVoidAndNeverSuccess) {
  Cell cell = cell_of(around(-0.05));
  for (Pair& pair : cell.pairs) pair.gate = "throttled";
  EXPECT_EQ(judge_figures(cell, {}).verdict, Verdict::void_);
}

TEST(Judge, ZeroHasNoRatio) {
  Cell cell = cell_of(around(0));
  cell.pairs[0].blocks.a = {0, 0};
  EXPECT_EQ(judge_figures(cell, {}).reason, Reason::no_ratio);
  cell.pairs.resize(1);
  EXPECT_EQ(judge_figures(cell, {}).reason, Reason::one_reroll) << "more re-rolls come first";
}

TEST(Judge, HolmTakesBackWhatManyLooksGive) {
  // p of about 0.03: enough alone, not as one of three.
  Finding weak = judged({0.09, 0.01, 0.08, 0.02, 0.07, -0.02, 0.05, 0.0});
  ASSERT_EQ(weak.verdict, Verdict::worse);
  ASSERT_GT(weak.p, 0.05 / 3);
  Finding other = judged(around(0.0));
  Finding third = judged(around(0.001));
  correct_together({&weak, &other, &third});
  EXPECT_EQ(weak.verdict, Verdict::inconclusive);
  EXPECT_EQ(weak.reason, Reason::holm);
  Finding strong = judged(around(0.05));
  correct_together({&strong, &other, &third});
  EXPECT_EQ(strong.verdict, Verdict::worse);
}

TEST(Conditions, NoFloorIsInconclusiveAndKeepsTheFigures) {
  Finding finding = judged(around(0.05), {}, std::nullopt);
  apply_conditions(finding, {}, nullptr);
  EXPECT_EQ(finding.verdict, Verdict::inconclusive);
  EXPECT_EQ(finding.reason, Reason::floor_unknown);
  EXPECT_EQ(finding.figures_verdict, Verdict::worse);
}

TEST(Conditions, EachTakesItsVerdictAway) {
  const auto with = [](const Conditions& conditions) {
    Finding finding = judged(around(0.05));
    apply_conditions(finding, conditions, nullptr);
    return std::pair(finding.verdict, finding.reason);
  };
  EXPECT_EQ(with({}), std::pair(Verdict::worse, Reason::regressed));
  EXPECT_EQ(with({.oversubscribed = true}), std::pair(Verdict::inconclusive, Reason::oversubscribed));
  EXPECT_EQ(with({.emulated_time = true}), std::pair(Verdict::void_, Reason::emulated_time));
  EXPECT_EQ(with({.time_sliced = true}), std::pair(Verdict::void_, Reason::time_sliced));
  EXPECT_EQ(with({.single_node = true}), std::pair(Verdict::void_, Reason::single_node));
  EXPECT_EQ(with({.traced = true}), std::pair(Verdict::void_, Reason::traced));
  EXPECT_EQ(with({.complete = false}), std::pair(Verdict::none, Reason::not_complete));
  EXPECT_EQ(with({.checks_passed = false}), std::pair(Verdict::none, Reason::check_failed));
}

TEST(Conditions, AMovedControlVoidsEvenAnInconclusive) {
  const Finding moved = judged(around(0.04));
  const Finding still = judged(around(0.0));
  Finding finding = judged(around(0.05));
  apply_conditions(finding, {}, &still);
  EXPECT_EQ(finding.verdict, Verdict::worse);
  apply_conditions(finding, {}, &moved);
  EXPECT_EQ(finding.verdict, Verdict::void_);
  EXPECT_EQ(finding.reason, Reason::control_moved);
}

}  // namespace
}  // namespace eb::evidence
