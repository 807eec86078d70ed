#include "harness/measure/experiment.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/measure/slot_values.h"
#include "harness/stats/summary.h"

namespace eb::measure {

namespace {

constexpr double kSteadySlope = 0.01;
constexpr std::int64_t kWarmUpWindows = 8;  // the cap is cut into this many

// Steps after which the batch shapes of every replica of every arm repeat.
std::int64_t batch_period(const plan::Plan& plan) {
  std::int64_t period = 1;
  for (const plan::Arm& arm : plan.arms) {
    for (int replica = 0; replica < arm.scenario.parallel.dp; ++replica) {
      const auto size = static_cast<std::int64_t>(arm.scenario.workload.batches_of(replica).size());
      if (size > 0) period = std::lcm(period, size);
    }
  }
  return period;
}

// The fake backend's noise: each re-roll has its own durations.
plan::Scenario with_noise(plan::Scenario scenario, const RerollPlan& reroll) {
  if (scenario.device.fake_noise <= 0) return scenario;
  const double factor = std::exp(scenario.device.fake_noise * normal_draw(scenario.seed, reroll.index));
  for (auto& [op, us] : scenario.device.fake_durations_us) us *= factor;
  return scenario;
}

class Runner {
 public:
  Runner(const plan::Plan& plan, const std::vector<plan::RunLayout>& layouts, const ExecutorFactory& factory,
         Observer& observer, bool instrumented)
      : plan_(plan),
        layouts_(layouts),
        factory_(factory),
        observer_(observer),
        instrumented_(instrumented),
        layers_(engram_layers(plan)),
        period_(batch_period(plan)) {}

  void run(const RerollPlan& reroll) {
    next_step_ = 0;
    std::vector<Allocation> allocations;
    for (const RerollPlan& one : allocations_of(reroll)) {
      observer_.reroll_starting(one);
      allocations.push_back(
          {one, factory_(with_noise(plan_.arms[one.allocated_for].scenario, reroll), layouts_[one.allocated_for])});
      observer_.reroll_ready(one, allocations.back().executor->storage());
    }
    const auto on = [&](std::size_t arm) -> Executor& {
      for (const Allocation& one : allocations) {
        if (one.plan.allocated_for == arm) return *one.executor;
      }
      return *allocations.front().executor;
    };
    // All arms are checked on the same indices: their digests must be equal.
    for (const SlotPlan& check : reroll.checks) {
      next_step_ = 0;
      run_slot(on(check.arm), reroll, check);
    }
    for (const SlotPlan& check : reroll.checks) warm_up(on(check.arm), reroll, check.arm);
    for (std::size_t b = 0; b < reroll.blocks.size(); ++b) {
      for (const SlotPlan& slot : reroll.blocks[b]) run_slot(on(slot.arm), reroll, slot);
      observer_.block_done(reroll, static_cast<int>(b));
    }
    for (const SlotPlan& slot : reroll.observed) run_slot(on(slot.arm), reroll, slot);
    for (const Allocation& one : allocations) {
      one.executor->snapshot("steady");
      observer_.reroll_steady(one.plan, one.executor->storage());
    }
    for (const Allocation& one : allocations) {
      one.executor->tear_down();
      observer_.reroll_done(one.plan, one.executor->storage());
    }
  }

 private:
  struct Allocation {
    RerollPlan plan;
    std::unique_ptr<Executor> executor;
  };

  // The re-roll as it is, or one plan for each arm whose tables it holds.
  static std::vector<RerollPlan> allocations_of(const RerollPlan& reroll) {
    if (reroll.coresident.empty()) return {reroll};
    std::vector<RerollPlan> out;
    for (const std::size_t arm : reroll.coresident) {
      RerollPlan one = reroll;
      one.allocated_for = arm;
      one.arms = {arm};
      out.push_back(std::move(one));
    }
    return out;
  }

  std::vector<StepValues> run_slot(Executor& executor, const RerollPlan& reroll, const SlotPlan& slot) {
    const plan::Scenario& scenario = plan_.arms[slot.arm].scenario;
    SlotInfo info;
    info.slot = next_slot_++;
    info.reroll = reroll.index;
    info.plan = slot;
    info.first_step = next_step_;
    control::RunSlot message;
    message.slot = info.slot;
    message.prefetch_json = plan::to_json(scenario);
    message.steps = slot.steps;
    message.first_step = next_step_;
    const bool in_figures = slot.kind == SlotKind::timed || slot.kind == SlotKind::observed;
    message.bare = slot.kind == SlotKind::calibration;
    message.timed = in_figures || slot.kind == SlotKind::warm_up || message.bare;
    message.observed = slot.kind == SlotKind::observed;
    message.check = slot.check;
    message.check_hidden = slot.check_hidden;
    // An observed slot does all that a timed one does, so that the two differ in the collectors alone.
    const bool measured = in_figures || slot.kind == SlotKind::burn_in;
    message.control = in_figures && has_negative_control(plan_);
    if (measured && plan_.experiment.inject.arm == plan_.arms[slot.arm].name) {
      message.inject_stage = plan_.experiment.inject.stage;
      message.inject_percent = plan_.experiment.inject.percent;
    }
    next_step_ += (slot.steps + period_ - 1) / period_ * period_;
    observer_.slot_starting(info);
    info.start_ns = now_ns();
    const std::vector<supervise::SlotReport> reports = executor.run_slot(message);
    info.end_ns = now_ns();
    for (const supervise::SlotReport& report : reports) info.window_launches.push_back(report.window_launches);
    std::vector<StepValues> values;
    if (message.timed && instrumented_) values = step_values(reports, info, layouts_[layout_of(reroll, slot.arm)]);
    observer_.slot_done(info, reports, values);
    return values;
  }

  static std::size_t layout_of(const RerollPlan& reroll, std::size_t arm) {
    return reroll.coresident.empty() ? reroll.allocated_for : arm;
  }

  std::vector<StepValues> step_values(const std::vector<supervise::SlotReport>& reports, const SlotInfo& info,
                                      const plan::RunLayout& layout) const {
    std::vector<std::span<const rank::EventRecord>> events(layout.ranks.size());
    for (const supervise::SlotReport& report : reports) {
      events.at(static_cast<std::size_t>(report.rank)) = report.events;
    }
    return slot_values(events, plan_.arms[info.plan.arm].scenario,
                       {info.plan.steps, info.first_step, info.window_launches}, layout, layers_);
  }

  void warm_up(Executor& executor, const RerollPlan& reroll, std::size_t arm) {
    if (reroll.warm_up_steps < 1) return;
    WarmUp result;
    result.arm = arm;
    result.reroll = reroll.index;
    const std::int64_t window = (reroll.warm_up_steps + kWarmUpWindows - 1) / kWarmUpWindows;
    while (result.steps < reroll.warm_up_steps && !result.steady) {
      const SlotPlan slot{
          SlotKind::warm_up, arm, -1, -1, std::min(window, reroll.warm_up_steps - result.steps), false, false};
      std::vector<double> step_us;
      for (const StepValues& values : run_slot(executor, reroll, slot)) {
        double most = 0;
        for (const auto& replica : values.per_replica) most = std::max(most, replica.front());
        step_us.push_back(most);
      }
      result.steps += slot.steps;
      if (step_us.empty()) continue;
      result.window_step_us.push_back(stats::median(step_us));
      result.slope = relative_slope(result.window_step_us);
      result.steady = result.slope && std::abs(*result.slope) < kSteadySlope;
    }
    observer_.warm_up_done(result);
  }

  const plan::Plan& plan_;
  const std::vector<plan::RunLayout>& layouts_;
  const ExecutorFactory& factory_;
  Observer& observer_;
  bool instrumented_;
  std::vector<int> layers_;
  std::int64_t period_;
  std::int64_t next_step_ = 0;
  std::uint16_t next_slot_ = 0;
};

}  // namespace

std::vector<int> engram_layers(const plan::Plan& plan) {
  std::set<int> layers;
  for (const plan::Arm& arm : plan.arms) {
    layers.insert(arm.scenario.model.base.layers.begin(), arm.scenario.model.base.layers.end());
  }
  return {layers.begin(), layers.end()};
}

bool has_negative_control(const plan::Plan& plan) {
  const auto judged =
      std::count_if(plan.arms.begin(), plan.arms.end(), [](const plan::Arm& arm) { return !arm.control; });
  return plan.experiment.negative_control && plan.experiment.pairs > 1 && judged > 1;
}

std::optional<double> relative_slope(const std::vector<double>& windows) {
  if (windows.size() < 3) return std::nullopt;
  const double a = windows[windows.size() - 3];
  const double b = windows[windows.size() - 2];
  const double c = windows[windows.size() - 1];
  const double mean = (a + b + c) / 3;
  if (!(mean > 0)) return std::nullopt;
  return (c - a) / mean;  // least squares over three equidistant points: slope (c - a)/2 a window, over two windows
}

void run_experiment(const plan::Plan& plan, const std::vector<RerollPlan>& schedule,
                    const std::vector<plan::RunLayout>& arm_layouts, const ExecutorFactory& factory, Observer& observer,
                    bool instrumented) {
  if (arm_layouts.size() != plan.arms.size()) fail(Exit::failure, "one layout an arm is needed");
  Runner runner(plan, arm_layouts, factory, observer, instrumented);
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    runner.run(schedule[i]);
    const bool last_of_pair = i + 1 == schedule.size() || schedule[i + 1].pair != schedule[i].pair;
    if (last_of_pair && observer.pair_done(schedule[i].pair)) return;
  }
}

}  // namespace eb::measure
