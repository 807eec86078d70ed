// How long a run takes, roughly: the schedule's steps times a model of one step on the CPU backend, plus the storage
// life cycle of each re-roll. The two ends are rates of a fast and of a slow core; a run's own times are in its result.
#include <algorithm>

#include "harness/cli/plan_report.h"
#include "harness/measure/order.h"
#include "harness/rank/backend_factory.h"
#include "harness/rank/step/step_shape.h"

namespace eb::cli {

namespace {

// Rates of one core. Fast: AVX-512 float32 GEMM out of cache, idle machine. Slow: AVX2 with the ranks contending.
struct Rates {
  double flops_per_s;
  double weight_bytes_per_s;  // weights of a small batch come from memory
  double row_s;               // look up, dequantise and gather one row
  double step_s;              // start and wait of one step on one rank: streams, events, collectives
  double layer_s;             // of one backbone layer
  double table_bytes_per_s;   // fault, write and check one byte of table
  double weight_element_s;    // make one synthetic weight
  double reroll_s;            // start and stop the rank processes
};
constexpr Rates kFast{60e9, 15e9, 0.1e-6, 0.1e-3, 10e-6, 0.8e9, 2e-9, 0.1};
constexpr Rates kSlow{12e9, 3e9, 1.0e-6, 2e-3, 200e-6, 0.15e9, 12e-9, 1.5};

struct Work {  // of all ranks
  double flops = 0;
  double weight_bytes = 0;
  double rows = 0;
  double layers = 0;
};

Work work_of_step(const plan::Scenario& scenario, const plan::RunLayout& layout, const engram::Geometry& geometry,
                  std::int64_t step) {
  Work work;
  for (int rank = 0; rank < scenario.ranks(); ++rank) {
    const rank::StepShape shape = rank::make_shape(scenario, layout, geometry, rank);
    const rank::StepTokens tokens = rank::step_tokens(shape, scenario.workload, step);
    if (scenario.workload.kind == plan::WorkloadKind::lookup) {
      // A window holds one launch of a large batch, or as many of a small one as take 200 us.
      constexpr double kWindowRows = 2000;
      if (!scenario.workload.active_readers.reads(rank)) continue;
      work.rows += std::max(static_cast<double>(tokens.lookup) * shape.part, kWindowRows) * shape.tables;
      continue;
    }
    const double backbone =
        2.0 * static_cast<double>(shape.backbone_n) * shape.hidden * shape.backbone_repeats * shape.backbone_layers;
    const double wkv = static_cast<double>(shape.kv_part) * static_cast<double>(shape.row_width()) * shape.tables;
    work.flops += 2.0 * (backbone * static_cast<double>(tokens.padded) + wkv * static_cast<double>(tokens.window));
    work.weight_bytes += 4.0 * (backbone + wkv);
    work.rows += static_cast<double>(tokens.lookup) * shape.part * shape.tables;
    work.layers += shape.backbone_layers;
  }
  return work;
}

double step_seconds(const Work& work, const Rates& rates, int ranks, double cores) {
  const double gemm = std::max(work.flops / rates.flops_per_s, work.weight_bytes / rates.weight_bytes_per_s);
  return (gemm + work.rows * rates.row_s + ranks * rates.step_s + work.layers * rates.layer_s) / cores;
}

double reroll_seconds(const ArmReport& arm, const Rates& rates, double cores) {
  const double elements = static_cast<double>(arm.memory.weight_bytes) / 4;
  const double tables = static_cast<double>(arm.memory.table_bytes) / rates.table_bytes_per_s;
  return rates.reroll_s + (tables + elements * rates.weight_element_s) / cores;
}

}  // namespace

TimeEstimate estimate_time(const plan::Plan& plan, const std::vector<ArmReport>& arms, int cpus) {
  TimeEstimate estimate;
  double low = 0;
  double high = 0;
  std::vector<std::int64_t> steps_of_arm(plan.arms.size(), 0);
  for (const measure::RerollPlan& reroll : measure::make_schedule(plan)) {
    ++estimate.rerolls;
    std::vector<std::size_t> owners = reroll.coresident;
    if (owners.empty()) owners.push_back(reroll.allocated_for);
    for (const std::size_t arm : owners) {
      const ArmReport& owner = arms.at(arm);
      const double cores = std::max(1, std::min(cpus, owner.arm->scenario.ranks()));
      low += reroll_seconds(owner, kFast, cores);
      high += reroll_seconds(owner, kSlow, cores);
    }
    const auto add = [&](const measure::SlotPlan& slot) {
      steps_of_arm.at(slot.arm) += slot.steps;
      if (slot.kind == measure::SlotKind::timed) estimate.timed_steps += slot.steps;
    };
    std::for_each(reroll.checks.begin(), reroll.checks.end(), add);
    for (const auto& block : reroll.blocks) std::for_each(block.begin(), block.end(), add);
    std::for_each(reroll.observed.begin(), reroll.observed.end(), add);
    for (const std::size_t arm : reroll.arms) steps_of_arm.at(arm) += reroll.warm_up_steps;
    for (const std::size_t arm : reroll.controls) steps_of_arm.at(arm) += reroll.warm_up_steps;
  }
  bool fake = false;
  for (std::size_t i = 0; i < arms.size(); ++i) {
    const plan::Scenario& scenario = arms[i].arm->scenario;
    fake = fake || scenario.device.backend == plan::BackendKind::fake;
    const engram::Geometry geometry = engram::make_geometry(scenario.model.base, scenario.model.table_scale);
    const auto entries = static_cast<std::int64_t>(std::clamp<std::size_t>(scenario.workload.batches.size(), 1, 16));
    const double cores = std::max(1, std::min(cpus, scenario.ranks()));
    double fast = 0;
    double slow = 0;
    for (std::int64_t step = 0; step < entries; ++step) {
      const Work work = work_of_step(scenario, arms[i].layout, geometry, step);
      fast += step_seconds(work, kFast, scenario.ranks(), cores) / static_cast<double>(entries);
      slow += step_seconds(work, kSlow, scenario.ranks(), cores) / static_cast<double>(entries);
    }
    estimate.steps += steps_of_arm[i];
    low += static_cast<double>(steps_of_arm[i]) * fast;
    high += static_cast<double>(steps_of_arm[i]) * slow;
  }
  if (fake) {
    estimate.reason = "the fake backend runs in virtual time";
    return estimate;
  }
  if (rank::resolve_backend(plan.base.device.backend) == plan::BackendKind::cuda) {
    estimate.reason = "not estimated for GPUs";
    return estimate;
  }
  estimate.low_s = low;
  estimate.high_s = high;
  estimate.reason = fmt::format(
      "not measured: {} re-rolls and {} steps (warm-up at its cap) times the arithmetic, rows and layers of a step, at "
      "assumed rates of a fast and a slow core, on {} CPUs",
      estimate.rerolls, estimate.steps, cpus);
  return estimate;
}

}  // namespace eb::cli
