// What recording events costs: `run --instrument both`.
#pragma once

#include <string>

#include "harness/cli/cli.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"

namespace eb::cli {

// Two sets of ranks side by side, one with and one without events beyond those that the step depends on, take turns in
// pairs of slots (ABBA) of the plan's first arm; each slot gives the mean time from one step's end to the next. Beside
// the ratio stands the cost of one event, measured on a stream of this process, times the events a step. Prints to
// stdout, writes no folder. Errors: those of supervise::Reroll; Error(usage) for a backend other than the CPU.
int measure_instrumentation(const plan::Plan& plan, const plan::RunLayout& layout, std::int64_t timeout_ms,
                            bool allow_degraded, bool json);

}  // namespace eb::cli
