// Carries out one plan into one folder: what `run`, `sweep` and `selftest` share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/cli/cli.h"
#include "harness/measure/order.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/supervise/reroll.h"

namespace eb::cli {

struct Prepared {
  plan::Plan plan;
  std::vector<engram::Geometry> geometries;  // of each arm
  std::vector<plan::RunLayout> layouts;
  std::vector<measure::RerollPlan> schedule;
};
// Errors: Error(usage) for a metric that the scenario does not have, or a plan without a schedule.
// Controls that this machine cannot run are left out; `rehearsal` as in preflight.
[[nodiscard]] Prepared prepare(plan::Plan plan, bool rehearsal = false);

struct Execution {
  std::string folder;
  bool force = false;
  bool instrument = true;
  bool single_node = false;     // a rehearsal: placement arms on one NUMA node
  bool trace = false;           // timed slots keep kernel records, and no verdict is given
  bool allow_degraded = false;  // a binding or placement that was not obtained is recorded instead of failing
  std::int64_t rank_timeout_ms = 60'000;
  std::string command_line;
};

struct Executed {
  Exit exit = Exit::ok;
  std::string result_text;  // result.json
};
// Runs the whole schedule; an error of the run is printed on stderr and written to the result. Errors: Error(usage) for
// a folder that exists, Error(failure) where the result cannot be begun.
[[nodiscard]] Executed execute(const Prepared& prepared, const Execution& execution, const Globals& globals);

// Prints the obstacles and returns the exit code that they ask for: skipped before failure. `obstacles` not empty.
[[nodiscard]] int refuse_obstacles(const std::vector<supervise::Obstacle>& obstacles);

}  // namespace eb::cli
