// The values of one timed slot from the events of its ranks: while it runs, and again from the stored events.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/measure/metrics.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/rank/step/events.h"

namespace eb::measure {

struct SlotShape {
  std::int64_t steps = 0;
  std::int64_t first_step = 0;  // of the workload
  // Lookups of each table in a step, by rank: 1 in steps of a model; 0: the rank is idle. Empty: 1 everywhere.
  std::vector<std::int64_t> window_launches;
};

// `events[r]`: what rank r of `layout` recorded in the slot; `arm`: the scenario that the slot ran; `engram_layers` as
// in StepMetrics. One entry a step, ascending. Errors: Error(failure) where a rank's events are not those of
// shape.steps steps, and those of build_timeline and StepMetrics.
[[nodiscard]] std::vector<StepValues> slot_values(const std::vector<std::span<const rank::EventRecord>>& events,
                                                  const plan::Scenario& arm, const SlotShape& shape,
                                                  const plan::RunLayout& layout, const std::vector<int>& engram_layers);

}  // namespace eb::measure
