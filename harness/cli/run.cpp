#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/cli/cli.h"
#include "harness/cli/execute.h"
#include "harness/cli/instrument.h"
#include "harness/cli/settings.h"
#include "harness/cli/tables.h"
#include "harness/rank/backend_factory.h"
#include "harness/result/folder.h"
#include "harness/result/json_value.h"
#include "harness/supervise/reroll.h"
#include "placement/topology.h"

namespace eb::cli {

namespace {

struct RunArguments {
  std::string scenario;
  std::string output;
  SettingArguments settings;
  bool force = false;
  bool dry_run = false;
  bool trace = false;
  double rank_timeout_s = 60;
  std::string instrument = "on";
  // Options of the design that this version does not have: refused by name.
  bool resume = false;
  bool report = false;
  bool allow_degraded = false;
  bool allow_single_node = false;
  std::string launcher;
};

std::int64_t timeout_ms(const RunArguments& arguments) {
  return static_cast<std::int64_t>(arguments.rank_timeout_s * 1000);
}

void refuse_unbuilt(const RunArguments& arguments) {
  const auto refuse = [](const char* option) { fail(Exit::usage, "{}: not in this version of engram-bench", option); };
  if (arguments.resume) refuse("--resume");
  if (arguments.report) refuse("--report");
  if (!arguments.launcher.empty()) refuse("--launcher");
}

// What would run, without starting anything.
int print_schedule(const Prepared& prepared, const std::vector<supervise::Obstacle>& obstacles, bool json) {
  result::Json rerolls = result::Json::array();
  for (const measure::RerollPlan& reroll : prepared.schedule) {
    result::Json blocks = result::Json::array();
    for (const auto& block : reroll.blocks) {
      std::string order;
      for (const measure::SlotPlan& slot : block) {
        if (slot.kind != measure::SlotKind::timed) continue;
        order += (order.empty() ? "" : " ") + prepared.plan.arms[slot.arm].name;
      }
      blocks.push_back(order);
    }
    const auto name = [&](std::size_t arm) { return prepared.plan.arms[arm].name; };
    std::string allocated = name(reroll.allocated_for);
    for (std::size_t i = 0; i < reroll.coresident.size(); ++i) {
      allocated = (i == 0 ? "" : allocated + " and ") + name(reroll.coresident[i]);
    }
    std::string observed;
    for (const measure::SlotPlan& slot : reroll.observed) observed += (observed.empty() ? "" : " ") + name(slot.arm);
    rerolls.push_back({{"reroll", reroll.index},
                       {"pair", reroll.pair},
                       {"allocated_for", allocated},
                       {"warm_up_steps", reroll.warm_up_steps},
                       {"blocks", blocks},
                       {"observed", observed}});
  }
  result::Json stops = result::Json::array();
  for (const supervise::Obstacle& one : obstacles)
    stops.push_back({{"exit", static_cast<int>(one.exit)}, {"text", one.text}});
  if (json) {
    fmt::print("{}\n", result::dump({{"name", prepared.plan.base.name},
                                     {"sha256", prepared.plan.sha256},
                                     {"rerolls", rerolls},
                                     {"would_stop_run", stops}}));
    return static_cast<int>(Exit::ok);
  }
  fmt::print("{}: {} re-roll(s)\n", prepared.plan.base.name, prepared.schedule.size());
  for (const result::Json& reroll : rerolls) {
    fmt::print("  re-roll {} (pair {}), tables allocated for arm {}, up to {} warm-up steps an arm\n",
               reroll["reroll"].get<int>(), reroll["pair"].get<int>(), reroll["allocated_for"].get<std::string>(),
               reroll["warm_up_steps"].get<std::int64_t>());
    for (std::size_t b = 0; b < reroll["blocks"].size(); ++b) {
      fmt::print("    block {}: {}\n", b, reroll["blocks"][b].get<std::string>());
    }
    if (reroll["observed"] != "") fmt::print("    observed: {}\n", reroll["observed"].get<std::string>());
  }
  for (const supervise::Obstacle& one : obstacles) {
    fmt::print("  would stop here (exit {}): {}\n", static_cast<int>(one.exit), one.text);
  }
  return static_cast<int>(Exit::ok);
}

// On a machine with one NUMA node: lets the arms of a placement experiment ask for that node instead of the ones that
// are not there. True where the run is such a rehearsal.
bool rehearse_on_one_node(plan::Plan& plan) {
  const std::string& factor = plan.experiment.factor;
  if (factor != "storage.policy" && factor != "storage.copies") return false;
  const placement::Topology topology = placement::read_topology(placement::Devices::skip);
  if (topology.nodes.size() != 1) return false;
  const int only = topology.nodes.front().id;
  for (plan::Arm& arm : plan.arms) {
    plan::Policy& policy = arm.scenario.storage.policy;
    if (policy.kind == plan::PolicyKind::weighted) {
      policy.weights = {{only, 1}};
      policy.text = fmt::format("weighted:{}=1", only);
    }
    if (policy.nodes.empty()) continue;
    policy.nodes = {only};
    policy.text = fmt::format("{}:{}", plan::name(policy.kind), only);
  }
  return true;
}

// Kernels of their own are a GPU's alone.
void say_what_a_trace_has(const plan::Plan& plan, const Globals& globals) {
  const plan::BackendKind backend = rank::resolve_backend(plan.base.device.backend);
  if (globals.quiet || backend == plan::BackendKind::cuda) return;
  fmt::print(stderr,
             "engram-bench: --trace: device.backend {} has no kernels of its own to record: events/ holds start and "
             "end of each operation, trace/ says why it has no spans, and the run is marked as traced\n",
             plan::name(backend));
}

int run_scenario(const RunArguments& arguments, const std::string& command_line, const Globals& globals) {
  refuse_unbuilt(arguments);
  if (!std::isfinite(arguments.rank_timeout_s)) fail(Exit::usage, "--rank-timeout: expected seconds, found no number");
  plan::Plan loaded = load_scenario(arguments.scenario, parse_settings(arguments.settings), arguments.settings.with);
  const bool rehearsal = arguments.allow_single_node && rehearse_on_one_node(loaded);
  const Prepared prepared = prepare(std::move(loaded), rehearsal);
  if (arguments.instrument == "both") {
    const std::vector<supervise::Obstacle> obstacles =
        supervise::preflight(prepared.plan, false, arguments.allow_degraded);
    if (!obstacles.empty()) return refuse_obstacles(obstacles);
    supervise::install_signal_handlers();
    return measure_instrumentation(prepared.plan, prepared.layouts.front(), timeout_ms(arguments),
                                   arguments.allow_degraded, globals.json);
  }
  const std::string folder_path =
      arguments.output.empty() ? result::default_folder(prepared.plan.base.name) : arguments.output;
  std::error_code unknown;  // a name that cannot be looked up cannot be made either, which is said there
  if (std::filesystem::exists(folder_path, unknown) && !arguments.force && !arguments.dry_run) {
    fail(Exit::usage, "output folder {} exists: choose another with -o, or overwrite its run with --force",
         folder_path);
  }
  supervise::clean_stale();
  const std::vector<supervise::Obstacle> obstacles =
      supervise::preflight(prepared.plan, rehearsal, arguments.allow_degraded);
  if (arguments.dry_run) return print_schedule(prepared, obstacles, globals.json);
  if (!obstacles.empty()) return refuse_obstacles(obstacles);

  Execution execution;
  execution.folder = folder_path;
  execution.force = arguments.force;
  execution.instrument = arguments.instrument == "on";
  execution.rank_timeout_ms = timeout_ms(arguments);
  execution.single_node = rehearsal;
  execution.trace = arguments.trace;
  execution.allow_degraded = arguments.allow_degraded;
  execution.command_line = command_line;
  if (arguments.trace) say_what_a_trace_has(prepared.plan, globals);
  const Executed executed = execute(prepared, execution, globals);
  if (globals.json) {
    fmt::print("{}", executed.result_text);
  } else if (!globals.quiet || executed.exit == Exit::ok) {
    fmt::print("{}", result_tables(result::Json::parse(executed.result_text), folder_path, globals.verbose > 0));
  }
  return static_cast<int>(executed.exit);
}

}  // namespace

void add_run(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command = app.add_subcommand("run", "Run a scenario and write its result to a folder");
  auto arguments = std::make_shared<RunArguments>();
  command->add_option("SCENARIO", arguments->scenario, "Scenario file (JSON)")->required();
  command->add_option("-o,--output", arguments->output, "Folder of the result [results/NAME-UTCTIME]");
  add_settings(*command, arguments->settings);
  command->add_flag("--force", arguments->force, "Overwrite the run in the output folder");
  command->add_flag("--dry-run", arguments->dry_run,
                    "Print the order of the run and what would stop it; start nothing");
  command->add_flag("--allow-degraded", arguments->allow_degraded,
                    "Record a binding, policy or placement that was refused or not obtained, instead of failing");
  command->add_flag("--trace", arguments->trace,
                    "Keep kernel records of timed slots (CUDA, by CUPTI) in trace/; every verdict is void");
  command
      ->add_option("--rank-timeout", arguments->rank_timeout_s, "Seconds without progress before a rank counts as hung")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command
      ->add_option("--instrument", arguments->instrument,
                   "Record events in the steps: on, off; both: print what they cost")
      ->check(CLI::IsMember({"on", "off", "both"}))
      ->group("");
  command->add_flag("--resume", arguments->resume)->group("");
  command->add_flag("--report", arguments->report)->group("");
  command->add_flag("--allow-single-node", arguments->allow_single_node,
                    "Rehearse a placement experiment on a machine with one NUMA node; every verdict is void");
  command->add_option("--launcher", arguments->launcher)->group("");
  command->callback([arguments, &globals, &action] {
    action = [arguments, &globals] {
      std::string line = "engram-bench run " + arguments->scenario;
      line += arguments->settings.line();
      return run_scenario(*arguments, line, globals);
    };
  });
}

}  // namespace eb::cli
