// What `plan` says about a scenario beyond that it is valid: who reads what, memory, time, and what stands in the way
// on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/supervise/memory_need.h"
#include "harness/supervise/reroll.h"

namespace eb::cli {

struct ArmReport {
  const plan::Arm* arm = nullptr;
  plan::RunLayout layout;
  supervise::MemoryEstimate memory;
};

// A range, from the schedule's steps times a model of one step: see plan_time.cpp. Nothing here is measured.
struct TimeEstimate {
  std::int64_t rerolls = 0;
  std::int64_t steps = 0;        // of all slots and arms, warm-up at its cap
  std::int64_t timed_steps = 0;  // of these, the ones that are measured
  std::optional<double> low_s;
  std::optional<double> high_s;
  std::string reason;  // why there is no range; else how it was made
};

struct PlanReport {
  std::vector<ArmReport> arms;
  TimeEstimate time;
  std::vector<supervise::Obstacle> obstacles;  // on this machine
  std::vector<std::string> notes;              // what a reader of the result must know
  std::string vllm;                            // what vLLM would do where something stands in the way; else empty
};

// `cpus`: those that this process may use. Errors: Error(usage) for a plan that has no schedule.
[[nodiscard]] TimeEstimate estimate_time(const plan::Plan& plan, const std::vector<ArmReport>& arms, int cpus);

// Errors: Error(usage) for a token file or map that does not fit the model.
[[nodiscard]] PlanReport make_plan_report(const plan::Plan& plan);

[[nodiscard]] std::string plan_report_text(const plan::Plan& plan, const PlanReport& report);
[[nodiscard]] std::string plan_report_json(const plan::Plan& plan, const PlanReport& report);

}  // namespace eb::cli
