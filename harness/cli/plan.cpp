// engram-bench plan: checks a scenario, expands it, says what it needs and what would stop `run` here.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/cli/cli.h"
#include "harness/cli/plan_report.h"
#include "harness/cli/settings.h"

namespace eb::cli {

namespace {

struct PlanOptions {
  std::string scenario;
  SettingArguments settings;
  bool print_schema = false;
  bool print_reference = false;
};

int run_plan(const PlanOptions& options, const Globals& globals) {
  if (options.print_schema || options.print_reference) {
    fmt::print("{}", options.print_schema ? plan::scenario_schema() : plan::scenario_reference());
    return static_cast<int>(Exit::ok);
  }
  if (options.scenario.empty()) fail(Exit::usage, "plan: name a scenario file, as in scenarios/quick.json");
  const plan::Plan plan = load_scenario(options.scenario, parse_settings(options.settings), options.settings.with);
  const PlanReport report = make_plan_report(plan);
  fmt::print("{}", globals.json ? plan_report_json(plan, report) : plan_report_text(plan, report));
  return static_cast<int>(Exit::ok);
}

}  // namespace

void add_plan(CLI::App& app, const Globals& globals, Action& action) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "Check a scenario, expand it, and say what it needs");
  command->add_option("scenario", options->scenario, "Scenario file")->type_name("FILE");
  add_settings(*command, options->settings);
  command->add_flag("--print-schema", options->print_schema, "Print the JSON Schema of scenario files");
  command->add_flag("--print-reference", options->print_reference, "Print the table of keys as Markdown");
  command->callback(
      [&action, &globals, options] { action = [&globals, options] { return run_plan(*options, globals); }; });
}

}  // namespace eb::cli
