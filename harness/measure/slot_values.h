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

// `events[r]`: what rank r of `layout` recorded in the slot; `arm`: the scenario that the slot ran; `engram_layers` as
// in StepMetrics. One entry a step, ascending. Errors: Error(failure) where a rank's events are not those of `steps`
// steps, and those of build_timeline and StepMetrics.
[[nodiscard]] std::vector<StepValues> slot_values(const std::vector<std::span<const rank::EventRecord>>& events,
                                                  const plan::Scenario& arm, std::int64_t steps,
                                                  const plan::RunLayout& layout, const std::vector<int>& engram_layers);

}  // namespace eb::measure
