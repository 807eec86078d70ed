#include "harness/measure/experiment.h"

#include <gtest/gtest.h>

#include "harness/base/error.h"
#include "tests/unit/measure/synthetic.h"

namespace eb::measure {
namespace {

// Records the order of everything, and answers slots with scripted events.
struct Log {
  std::vector<std::string> lines;
  std::vector<control::RunSlot> slots;
};

class ScriptedExecutor final : public Executor {
 public:
  // `label` stands before its lines, where there are several.
  ScriptedExecutor(Log& log, bool steady, std::string label = "")
      : log_(log), steady_(steady), label_(std::move(label)) {
    log_.lines.push_back(label_ + "allocate");
  }
  ~ScriptedExecutor() override { log_.lines.push_back(label_ + "gone"); }
  std::vector<supervise::SlotReport> run_slot(const control::RunSlot& slot) override {
    log_.lines.push_back(fmt::format("{}run{}{}{}{}", label_, slot.timed ? " timed" : "", slot.check ? " check" : "",
                                     slot.check_hidden ? " hidden" : "", slot.observed ? " observed" : ""));
    log_.slots.push_back(slot);
    std::vector<supervise::SlotReport> reports(4);
    for (int r = 0; r < 4; ++r) {
      Script script(slot.slot);
      for (std::int64_t s = 0; slot.timed && s < slot.steps; ++s) {
        const std::int64_t drift = steady_ ? 0 : calls_ * 500;
        scripted_step(script, static_cast<std::uint32_t>(slot.first_step + s), 10000 + s * 10000, drift);
      }
      reports[static_cast<std::size_t>(r)] = {r, script.events, "{}"};
    }
    ++calls_;
    return reports;
  }
  void snapshot(const std::string& label) override { log_.lines.push_back(label_ + "snapshot " + label); }
  void tear_down() override { log_.lines.push_back(label_ + "tear_down"); }
  const supervise::StorageReport& storage() const noexcept override { return storage_; }

 private:
  Log& log_;
  bool steady_;
  std::string label_;
  std::int64_t calls_ = 0;
  supervise::StorageReport storage_;
};

class Watcher final : public Observer {
 public:
  explicit Watcher(Log& log) : log_(log) {}
  void slot_done(const SlotInfo& slot, const std::vector<supervise::SlotReport>&,
                 const std::vector<StepValues>& values) override {
    infos.push_back(slot);
    steps += values.size();
  }
  void warm_up_done(const WarmUp& warm_up) override { warm_ups.push_back(warm_up); }
  void block_done(const RerollPlan&, int block) override { log_.lines.push_back(fmt::format("block {} done", block)); }
  bool pair_done(int pair) override {
    pairs.push_back(pair);
    return pair == enough_after;
  }
  std::vector<int> pairs;
  int enough_after = -1;
  std::vector<SlotInfo> infos;
  std::vector<WarmUp> warm_ups;
  std::size_t steps = 0;

 private:
  Log& log_;
};

plan::Plan b1() {
  plan::Plan plan;
  plan.experiment.blocks = 1;
  for (const char* name : {"A", "B"}) {
    plan::Arm arm;
    arm.name = name;
    arm.scenario.parallel.tp = 2;
    arm.scenario.parallel.dp = 2;
    arm.scenario.model.base.layers = {1, 14};
    arm.scenario.workload.steps = 3;
    arm.scenario.workload.warmup = 16;
    arm.scenario.workload.burn_in = 1;
    arm.scenario.workload.batches = {plan::Batch{}, plan::Batch{}};
    plan.arms.push_back(arm);
  }
  return plan;
}

plan::RunLayout layout() {
  plan::RunLayout layout;
  for (int r = 0; r < 4; ++r) {
    plan::RankPlace place;
    place.rank = r;
    place.replica = r / 2;
    place.tp_rank = r % 2;
    layout.ranks.push_back(place);
  }
  layout.tp_groups = {{0, 1}, {2, 3}};
  return layout;
}

TEST(Experiment, OrderOfOneReroll) {
  const plan::Plan plan = b1();
  Log log;
  Watcher watcher(log);
  run_experiment(
      plan, make_schedule(plan), {layout(), layout()},
      [&](const plan::Scenario&, const plan::RunLayout&) { return std::make_unique<ScriptedExecutor>(log, true); },
      watcher);
  const std::vector<std::string> expected = {"allocate",
                                             "run check hidden",
                                             "run check hidden",  // correctness before any timing
                                             "run timed",
                                             "run timed",
                                             "run timed",
                                             "run timed",
                                             "run timed",
                                             "run timed",  // warm-up: three windows an arm
                                             "run",
                                             "run timed",
                                             "run timed",
                                             "run timed check",
                                             "run timed check",
                                             "block 0 done",
                                             "run timed observed",
                                             "run timed observed",  // a pass with collectors on, after the timed one
                                             "snapshot steady",
                                             "tear_down",
                                             "gone"};
  EXPECT_EQ(log.lines, expected);
  EXPECT_EQ(watcher.steps, 6U * 2U + 4U * 3U + 2U * 3U);
  ASSERT_EQ(watcher.warm_ups.size(), 2U);
  EXPECT_TRUE(watcher.warm_ups[0].steady);
  EXPECT_EQ(watcher.warm_ups[0].steps, 6);
}

std::vector<control::RunSlot> slots_of(const plan::Plan& plan) {
  Log log;
  Watcher watcher(log);
  run_experiment(
      plan, make_schedule(plan), {layout(), layout()},
      [&](const plan::Scenario&, const plan::RunLayout&) { return std::make_unique<ScriptedExecutor>(log, true); },
      watcher);
  return log.slots;
}

// What an observed slot does differs from a timed one's by the collectors alone.
TEST(Experiment, AnObservedSlotIsATimedOneWithCollectors) {
  plan::Plan plan = b1();
  plan.experiment.pairs = 2;
  plan.experiment.inject = {"lookup", 10, "B"};
  int observed = 0;
  int injected = 0;
  for (const auto& slot : slots_of(plan)) {
    if (!slot.observed) continue;
    ++observed;
    injected += slot.inject_stage.empty() ? 0 : 1;
    EXPECT_TRUE(slot.timed && slot.control);
    EXPECT_FALSE(slot.check);
    EXPECT_EQ(slot.steps, 3);
  }
  EXPECT_EQ(observed, 4) << "one an arm in each of two re-rolls";
  EXPECT_EQ(injected, 2) << "of arm B";
}

TEST(Experiment, EndsAfterThePairThatIsEnough) {
  plan::Plan plan = b1();
  plan.experiment.pairs = 7;
  Log log;
  Watcher watcher(log);
  watcher.enough_after = 2;
  run_experiment(
      plan, make_schedule(plan), {layout(), layout()},
      [&](const plan::Scenario&, const plan::RunLayout&) { return std::make_unique<ScriptedExecutor>(log, true); },
      watcher);
  EXPECT_EQ(watcher.pairs, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(std::count(log.lines.begin(), log.lines.end(), "allocate"), 3);
  EXPECT_EQ(log.lines.back(), "gone") << "the pair is ended, not cut";
}

TEST(Experiment, APairOfSeveralRerollsIsAskedAboutOnce) {
  plan::Plan plan = b1();
  plan.arms_share_allocation = false;
  plan.experiment.pairs = 3;
  Log log;
  Watcher watcher(log);
  watcher.enough_after = 1;
  run_experiment(
      plan, make_schedule(plan), {layout(), layout()},
      [&](const plan::Scenario&, const plan::RunLayout&) { return std::make_unique<ScriptedExecutor>(log, true); },
      watcher);
  EXPECT_EQ(watcher.pairs, (std::vector<int>{0, 1}));
  EXPECT_EQ(std::count(log.lines.begin(), log.lines.end(), "allocate"), 4);
}

// Both arms' tables are there before the first slot, blocks alternate between them, and each slot runs on its own.
TEST(Experiment, OrderOfCoresidentArms) {
  plan::Plan plan = b1();
  plan.arms_share_allocation = false;
  plan.experiment.coresident = true;
  plan.arms[0].scenario.workload.warmup = 0;
  plan.arms[1].scenario.workload.warmup = 0;
  plan.arms[0].scenario.storage.tolerance = 0.25;  // tells the arms apart in the factory
  Log log;
  Watcher watcher(log);
  run_experiment(
      plan, make_schedule(plan), {layout(), layout()},
      [&](const plan::Scenario& scenario, const plan::RunLayout&) {
        return std::make_unique<ScriptedExecutor>(log, true, scenario.storage.tolerance == 0.25 ? "A " : "B ");
      },
      watcher);
  ASSERT_EQ(log.lines.size(), 2U + 2U + 5U + 1U + 2U + 2U + 2U + 2U);
  const std::vector<std::string> first(log.lines.begin(), log.lines.begin() + 4);
  const std::string one = first[0].substr(0, 2);
  const std::string other = one == "A " ? "B " : "A ";
  EXPECT_EQ(first, (std::vector<std::string>{one + "allocate", other + "allocate", "A run check hidden",
                                             "B run check hidden"}));
  std::string order;
  for (std::size_t i = 5; i < 9; ++i) order += log.lines[i][0];
  EXPECT_TRUE(order == "ABBA" || order == "BAAB") << order;
  const std::vector<std::string> last(log.lines.begin() + 12, log.lines.end());
  EXPECT_EQ(last, (std::vector<std::string>{one + "snapshot steady", other + "snapshot steady", one + "tear_down",
                                            other + "tear_down", one + "gone", other + "gone"}));
  for (std::size_t i = 2; i < log.slots.size(); ++i) {
    EXPECT_GE(log.slots[i].first_step, log.slots[i - 1].first_step) << "one sequence of indices for both";
  }
}

TEST(Experiment, TheNegativeControlRunsInTimedSlotsOfPairedArms) {
  plan::Plan plan = b1();
  for (const auto& slot : slots_of(plan)) EXPECT_FALSE(slot.control) << "one pair gives no verdict";
  plan.experiment.pairs = 2;
  int controlled = 0;
  for (const auto& slot : slots_of(plan)) controlled += slot.control ? 1 : 0;
  EXPECT_EQ(controlled, 2 * (4 + 2))
      << "ABBA and the observed slots in each of two re-rolls; no check, warm-up or burn-in";
  plan.experiment.negative_control = false;
  for (const auto& slot : slots_of(plan)) EXPECT_FALSE(slot.control);
}

TEST(Experiment, ExtraWorkGoesIntoMeasuredSlotsOfItsArmOnly) {
  plan::Plan plan = b1();
  plan.experiment.inject = {"lookup", 10, "B"};
  int injected = 0;
  const std::vector<control::RunSlot> slots = slots_of(plan);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].inject_stage.empty()) continue;
    ++injected;
    EXPECT_GE(i, 8U) << "checks and warm-up show what the stage takes without it";
    EXPECT_EQ(slots[i].inject_percent, 10);
  }
  EXPECT_GE(injected, 3);
  EXPECT_LE(injected, 4) << "two timed slots of B, its observed one, and the burn-in where the block opens with it";
}

TEST(Experiment, TheFakesNoiseIsDrawnOncePerReroll) {
  plan::Plan plan = b1();
  plan.experiment.pairs = 3;
  for (plan::Arm& arm : plan.arms) {
    arm.scenario.device.fake_durations_us = {{"lookup", 100.0}};
    arm.scenario.device.fake_noise = 0.02;
  }
  std::vector<double> lookups;
  Log log;
  Watcher watcher(log);
  run_experiment(
      plan, make_schedule(plan), {layout(), layout()},
      [&](const plan::Scenario& scenario, const plan::RunLayout&) {
        lookups.push_back(scenario.device.fake_durations_us.at("lookup"));
        return std::make_unique<ScriptedExecutor>(log, true);
      },
      watcher);
  ASSERT_EQ(lookups.size(), 3U);
  EXPECT_NE(lookups[0], lookups[1]);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < 4000; ++i) {
    const double z = normal_draw(7, i);
    sum += z;
    squares += z * z;
  }
  EXPECT_NEAR(sum / 4000, 0, 0.06);
  EXPECT_NEAR(squares / 4000, 1, 0.08);
}

TEST(Experiment, IndicesNeverComeTwiceAndBatchShapesStayInStep) {
  const plan::Plan plan = b1();
  Log log;
  Watcher watcher(log);
  run_experiment(
      plan, make_schedule(plan), {layout(), layout()},
      [&](const plan::Scenario&, const plan::RunLayout&) { return std::make_unique<ScriptedExecutor>(log, true); },
      watcher);
  EXPECT_EQ(log.slots[0].first_step, log.slots[1].first_step);  // both arms are checked on the same indices
  std::int64_t free = log.slots[1].first_step + log.slots[1].steps;
  for (std::size_t i = 2; i < log.slots.size(); ++i) {
    EXPECT_GE(log.slots[i].first_step, free);
    EXPECT_EQ(log.slots[i].first_step % 2, 0);  // two batches alternate
    EXPECT_EQ(log.slots[i].slot, i);
    free = log.slots[i].first_step + log.slots[i].steps;
  }
}

TEST(Experiment, WarmUpThatDriftsHitsItsCap) {
  plan::Plan plan = b1();
  for (plan::Arm& arm : plan.arms) arm.scenario.workload.warmup = 17;  // windows of three steps, and one of two
  Log log;
  Watcher watcher(log);
  run_experiment(
      plan, make_schedule(plan), {layout(), layout()},
      [&](const plan::Scenario&, const plan::RunLayout&) { return std::make_unique<ScriptedExecutor>(log, false); },
      watcher);
  EXPECT_FALSE(watcher.warm_ups[0].steady);
  EXPECT_EQ(watcher.warm_ups[0].steps, 17);
  std::int64_t run = 0;
  for (const auto& slot : log.slots)
    run += slot.timed && !slot.control && !slot.observed && slot.slot < 8 ? slot.steps : 0;
  EXPECT_EQ(run, 17) << "and not one step more";
  EXPECT_GT(*watcher.warm_ups[0].slope, 0.01);
}

TEST(Experiment, SlopeOverTheLastThreeWindows) {
  EXPECT_FALSE(relative_slope({1, 2}));
  EXPECT_DOUBLE_EQ(*relative_slope({50, 1, 2, 3}), 1.0);
  EXPECT_DOUBLE_EQ(*relative_slope({2, 7, 2}), 0.0);
}

// A failed check ends the run at once: nothing is timed, and the re-roll is gone.
TEST(Experiment, AFailedCheckStopsBeforeTiming) {
  const plan::Plan plan = b1();
  Log log;
  class Failing final : public Executor {
   public:
    explicit Failing(Log& log) : log_(log) {}
    ~Failing() override { log_.lines.emplace_back("gone"); }
    std::vector<supervise::SlotReport> run_slot(const control::RunSlot& slot) override {
      log_.lines.emplace_back(slot.timed ? "timed" : "check");
      fail(Exit::bad_data, "rank 1: layer 14 token 3 column 2 differs");
    }
    void snapshot(const std::string&) override {}
    void tear_down() override {}
    const supervise::StorageReport& storage() const noexcept override { return storage_; }

   private:
    Log& log_;
    supervise::StorageReport storage_;
  };
  Watcher watcher(log);
  try {
    run_experiment(
        plan, make_schedule(plan), {layout(), layout()},
        [&](const plan::Scenario&, const plan::RunLayout&) { return std::make_unique<Failing>(log); }, watcher);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_data);
  }
  EXPECT_EQ(log.lines, (std::vector<std::string>{"check", "gone"}));
}

}  // namespace
}  // namespace eb::measure
