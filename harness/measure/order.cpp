#include "harness/measure/order.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "harness/base/error.h"

namespace eb::measure {

namespace {

// Draws of the schedule: a counter-based generator, so that every draw is named by its place and not by the history.
std::uint64_t draw(std::uint64_t seed, std::uint64_t purpose, std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = seed;
  for (const std::uint64_t piece : {purpose, a, b}) {
    x += 0x9E3779B97F4A7C15ULL + piece;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    x ^= x >> 31;
  }
  return x;
}

enum Purpose : std::uint64_t { kBlockSide = 1, kBlockShuffle = 2, kPairSide = 3, kPairShuffle = 4, kNoise = 5 };

std::vector<std::size_t> shuffled(std::size_t arms, std::uint64_t seed, std::uint64_t purpose, std::uint64_t place) {
  std::vector<std::size_t> order(arms);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = arms; i > 1; --i) std::swap(order[i - 1], order[draw(seed, purpose, place, i) % i]);
  return order;
}

// True where `key` is one that a running rank can change between slots.
bool is_slot_key(const std::string& key) { return key.starts_with("prefetch.") || key.starts_with("workload."); }

constexpr std::int64_t kMostCalibrationWindows = 32;

bool fits_allocation(const plan::Arm& control) {
  return std::all_of(control.overrides.begin(), control.overrides.end(),
                     [](const auto& entry) { return is_slot_key(entry.first); });
}

// BW_effective is measured beside the arm's lookups.
bool has_calibration(const plan::Plan& plan, std::size_t arm) {
  const plan::Scenario& scenario = plan.arms[arm].scenario;
  if (scenario.storage.backing == plan::Backing::stub) return false;
  return plan.experiment.bw_effective.value_or(scenario.workload.kind == plan::WorkloadKind::lookup);
}

// Fills checks, warm-up and blocks of a re-roll whose arms and controls are set.
void add_slots(const plan::Plan& plan, RerollPlan& reroll) {
  std::vector<std::size_t> all = reroll.arms;
  all.insert(all.end(), reroll.controls.begin(), reroll.controls.end());
  for (const std::size_t arm : all) reroll.checks.push_back({SlotKind::check, arm, -1, -1, 1, true, true});
  const plan::WorkloadSpec& workload = plan.arms[reroll.allocated_for].scenario.workload;
  reroll.warm_up_steps = workload.warmup;
  for (int b = 0; b < plan.experiment.blocks; ++b) {
    std::vector<SlotPlan> block;
    std::vector<std::size_t> order;
    for (const std::size_t i : block_order(reroll.arms.size(), reroll.index, b, plan.base.seed)) {
      order.push_back(reroll.arms[i]);
    }
    order.insert(order.end(), reroll.controls.begin(), reroll.controls.end());
    if (workload.burn_in > 0)
      block.push_back({SlotKind::burn_in, order.front(), b, -1, workload.burn_in, false, false});
    for (std::size_t p = 0; p < order.size(); ++p) {
      // Each arm's last slot of the block is checked on the output of its last timed step.
      const bool last =
          std::find(order.begin() + static_cast<std::ptrdiff_t>(p) + 1, order.end(), order[p]) == order.end();
      block.push_back({SlotKind::timed, order[p], b, static_cast<int>(p), plan.arms[order[p]].scenario.workload.steps,
                       last, false});
    }
    for (const std::size_t arm : all) {
      if (!has_calibration(plan, arm)) continue;
      const std::int64_t windows = std::min(plan.arms[arm].scenario.workload.steps, kMostCalibrationWindows);
      block.push_back({SlotKind::calibration, arm, b, static_cast<int>(block.size()), windows, false, false});
    }
    reroll.blocks.push_back(std::move(block));
  }
  if (!plan.experiment.observed_pass) return;
  for (const std::size_t i : block_order(reroll.arms.size(), reroll.index, plan.experiment.blocks, plan.base.seed)) {
    const std::size_t arm = reroll.arms[i];
    const bool there = std::any_of(reroll.observed.begin(), reroll.observed.end(),
                                   [&](const SlotPlan& slot) { return slot.arm == arm; });
    if (there) continue;  // the second half of ABBA
    reroll.observed.push_back({SlotKind::observed, arm, -1, -1, plan.arms[arm].scenario.workload.steps, false, false});
  }
}

}  // namespace

double normal_draw(std::uint64_t seed, int reroll) noexcept {
  const auto place = static_cast<std::uint64_t>(reroll);
  const auto unit = [&](std::uint64_t which) {
    return (static_cast<double>(draw(seed, kNoise, place, which) >> 11) + 0.5) * 0x1p-53;
  };
  return std::sqrt(-2 * std::log(unit(0))) * std::cos(2 * std::numbers::pi * unit(1));  // Box-Muller
}

const char* name(SlotKind kind) noexcept {
  switch (kind) {
    case SlotKind::check:
      return "check";
    case SlotKind::warm_up:
      return "warm_up";
    case SlotKind::burn_in:
      return "burn_in";
    case SlotKind::timed:
      return "timed";
    case SlotKind::observed:
      return "observed";
    case SlotKind::calibration:
      return "calibration";
  }
  return "?";
}

std::vector<std::size_t> block_order(std::size_t arms, int reroll, int block, std::uint64_t seed) {
  if (arms == 1) return {0};
  const auto place = static_cast<std::uint64_t>(reroll);
  if (arms == 2) {
    const bool swap_first = (draw(seed, kBlockSide, place, static_cast<std::uint64_t>(block / 2)) & 1U) != 0;
    const std::size_t first = swap_first == (block % 2 == 0) ? 1 : 0;
    return {first, 1 - first, 1 - first, first};
  }
  return shuffled(arms, seed, kBlockShuffle, place * 65536 + static_cast<std::uint64_t>(block));
}

std::vector<std::size_t> pair_order(std::size_t arms, int pair, std::uint64_t seed) {
  if (arms == 1) return {0};
  if (arms == 2) {
    const bool swap_first = (draw(seed, kPairSide, static_cast<std::uint64_t>(pair / 2), 0) & 1U) != 0;
    const std::size_t first = swap_first == (pair % 2 == 0) ? 1 : 0;
    return {first, 1 - first};
  }
  return shuffled(arms, seed, kPairShuffle, static_cast<std::uint64_t>(pair));
}

std::vector<RerollPlan> make_schedule(const plan::Plan& plan) {
  std::vector<std::size_t> arms;
  std::vector<std::size_t> inside;   // controls that share the arms' allocation
  std::vector<std::size_t> outside;  // controls that need their own
  for (std::size_t i = 0; i < plan.arms.size(); ++i) {
    const plan::Arm& arm = plan.arms[i];
    if (!arm.control) {
      arms.push_back(i);
    } else {
      (plan.arms_share_allocation && fits_allocation(arm) ? inside : outside).push_back(i);
    }
    if (arm.scenario.workload.steps < 1) fail(Exit::usage, "workload.steps of arm {} is below 1", arm.name);
  }
  if (arms.empty()) fail(Exit::usage, "the experiment has no arm");
  if (plan.experiment.blocks < 1 || plan.experiment.pairs < 1) {
    fail(Exit::usage, "experiment.blocks {} and experiment.pairs {} must be at least 1", plan.experiment.blocks,
         plan.experiment.pairs);
  }
  std::vector<RerollPlan> schedule;
  const auto add = [&](int pair, std::vector<std::size_t> judged, std::vector<std::size_t> controls,
                       std::vector<std::size_t> coresident = {}) {
    RerollPlan reroll;
    reroll.coresident = std::move(coresident);
    reroll.index = static_cast<int>(schedule.size());
    reroll.pair = pair;
    reroll.allocated_for = judged.front();
    reroll.arms = std::move(judged);
    reroll.controls = std::move(controls);
    add_slots(plan, reroll);
    schedule.push_back(std::move(reroll));
  };
  for (int pair = 0; pair < plan.experiment.pairs; ++pair) {
    if (plan.arms_share_allocation) {
      add(pair, arms, inside);
    } else if (plan.experiment.coresident) {
      // Which arm's tables come first into memory alternates as whole re-rolls of the arms would.
      std::vector<std::size_t> order;
      for (const std::size_t i : pair_order(arms.size(), pair, plan.base.seed)) order.push_back(arms[i]);
      add(pair, arms, {}, order);
    } else {
      for (const std::size_t i : pair_order(arms.size(), pair, plan.base.seed)) add(pair, {arms[i]}, {});
    }
    for (const std::size_t control : outside) add(pair, {control}, {});
  }
  std::size_t slots = 0;
  for (const RerollPlan& reroll : schedule) {
    slots += reroll.checks.size() * 17;  // a check and at most 16 warm-up windows an arm
    for (const auto& block : reroll.blocks) slots += block.size();
    slots += reroll.observed.size();
  }
  if (slots > 65535) {
    fail(Exit::usage, "the experiment has {} slots; event records number at most 65535: lower pairs or blocks", slots);
  }
  return schedule;
}

}  // namespace eb::measure
