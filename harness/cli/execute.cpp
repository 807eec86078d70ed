#include "harness/cli/execute.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "harness/base/os.h"
#include "harness/base/sha256.h"
#include "harness/cli/archive_place.h"
#include "harness/cli/progress.h"
#include "harness/measure/experiment.h"
#include "harness/result/cites.h"
#include "harness/result/run_writer.h"
#include "harness/supervise/binding.h"
#include "placement/topology.h"

namespace eb::cli {

namespace {

std::string own_hash() {
  try {
    return sha256_file("/proc/self/exe");
  } catch (const Error&) {
    return "";
  }
}

// An archive stays locked against writers until its run is read.
result::Json cited_runs(const plan::ExperimentSpec& experiment, const result::FloorKey& key) {
  std::vector<std::unique_ptr<RunPlace>> places;
  std::vector<result::CitedRun> runs;
  for (const std::string& cited : experiment.cites) {
    places.push_back(std::make_unique<RunPlace>(cited, ""));
    runs.push_back({cited, places.back()->folder()});
  }
  return result::read_cites(runs, key);
}

}  // namespace

Prepared prepare(plan::Plan plan, bool rehearsal) {
  Prepared prepared;
  prepared.plan = std::move(plan);
  supervise::skip_controls(prepared.plan, rehearsal);
  const placement::Topology topology = placement::read_topology(placement::Devices::skip);
  for (const plan::Arm& arm : prepared.plan.arms) {
    prepared.geometries.push_back(engram::make_geometry(arm.scenario.model.base, arm.scenario.model.table_scale));
    prepared.layouts.push_back(supervise::layout_here(arm.scenario, prepared.geometries.back(), topology));
  }
  const plan::ExperimentSpec& experiment = prepared.plan.experiment;
  if (!experiment.primary.empty()) {
    for (const plan::Arm& arm : prepared.plan.arms) {
      if (!arm.control) measure::check_metric_exists(experiment.primary, arm.scenario);
    }
  }
  // One arm is not judged: the default guards may name what it does not have.
  for (const plan::Arm& arm : prepared.plan.arms) {
    if (arm.control || (experiment.factor.empty() && experiment.aa.empty())) continue;
    for (const std::string& guard : experiment.guards) measure::check_guard(guard, arm.scenario);
  }
  prepared.schedule = measure::make_schedule(prepared.plan);
  return prepared;
}

Executed execute(const Prepared& prepared, const Execution& execution, const Globals& globals) {
  supervise::install_signal_handlers();
  result::RunInput input;
  input.plan = &prepared.plan;
  input.layouts = prepared.layouts;
  input.geometries = prepared.geometries;
  input.topology = placement::read_topology(placement::Devices::read);
  input.floor_key = result::floor_key(prepared.plan, input.topology);
  if (const auto state = result::state_folder()) input.aa_pairs = result::read_floor(*state, input.floor_key);
  input.cites = cited_runs(prepared.plan.experiment, input.floor_key);
  input.command_line = execution.command_line;
  input.binary_sha256 = own_hash();
  input.instrument = execution.instrument;
  input.allow_degraded = execution.allow_degraded;
  input.single_node = execution.single_node;
  input.traced = execution.trace;
  result::RunFolder folder(execution.folder, execution.force);
  result::RunWriter writer(folder, input);
  supervise::Options options;
  options.timeout_ms = execution.rank_timeout_ms;
  options.instrument = execution.instrument;
  options.allow_degraded = execution.allow_degraded;
  options.trace = execution.trace;
  Exit exit = Exit::ok;
  std::string failure;
  {
    const bool shown = !globals.quiet && !globals.no_progress && ::isatty(STDERR_FILENO) != 0;
    ProgressLine progress(writer, prepared.plan, prepared.schedule, shown);
    try {
      measure::run_experiment(prepared.plan, prepared.schedule, prepared.layouts, measure::reroll_factory(options),
                              progress, execution.instrument);
      writer.finish();
    } catch (const Error& error) {
      exit = error.exit();
      failure = error.what();
    } catch (const std::exception& error) {
      exit = Exit::failure;
      failure = error.what();
    }
  }
  if (exit != Exit::ok) {
    fmt::print(stderr, "engram-bench: {}\n", failure);
    try {
      writer.finish_failed(failure, exit);
    } catch (const Error& second) {
      // A disk that is full refuses this too; what is there says that it is not complete.
      fmt::print(stderr, "engram-bench: the failure could not be written to the result: {}\n", second.what());
    }
  }
  return {exit, writer.result_text()};
}

// Usage (checked by the caller) before skipped before failure.
int refuse_obstacles(const std::vector<supervise::Obstacle>& obstacles) {
  const bool skipped = std::any_of(obstacles.begin(), obstacles.end(),
                                   [](const supervise::Obstacle& one) { return one.exit == Exit::skipped; });
  for (const supervise::Obstacle& one : obstacles) {
    fmt::print(stderr, "engram-bench: {}{}\n", one.exit == Exit::skipped ? "skipped: " : "", one.text);
  }
  return static_cast<int>(skipped ? Exit::skipped : obstacles.front().exit);
}

}  // namespace eb::cli
