#include "harness/cli/settings.h"

#include <algorithm>

#include "harness/backend/backend.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/measure/metrics.h"
#include "harness/plan/nearest.h"

namespace eb::cli {

namespace {

constexpr std::size_t kLargestOverlay = 16u << 20;

// "lookup", or with its layer "lookup.l14".
void check_operation(const std::string& entry) {
  std::vector<std::string> names;
  for (int kind = 0; kind <= static_cast<int>(backend::OpKind::fill); ++kind) {
    names.emplace_back(backend::name(static_cast<backend::OpKind>(kind)));
  }
  const std::size_t dot = entry.find('.');
  const std::string operation = entry.substr(0, dot);
  if (std::find(names.begin(), names.end(), operation) == names.end()) {
    fail(Exit::usage, "device.fake_durations_us: unknown operation {}; nearest: {}", entry,
         plan::nearest(operation, names));
  }
  if (dot == std::string::npos) return;
  const std::string layer = entry.substr(dot + 1);
  const bool number = layer.size() > 1 && layer.size() < 6 && layer[0] == 'l' &&
                      layer.find_first_not_of("0123456789", 1) == std::string::npos;
  if (!number) {
    fail(Exit::usage, "device.fake_durations_us: {}: expected the operation's layer behind the dot, as in {}.l14",
         entry, operation);
  }
}

}  // namespace

plan::Plan load_scenario(const std::string& path, const std::vector<plan::Setting>& settings,
                         const std::vector<std::string>& with) {
  std::vector<plan::Overlay> overlays;
  for (const std::string& file : with) {
    try {
      overlays.push_back({file, read_file(file, kLargestOverlay)});
    } catch (const Error& error) {
      fail(Exit::usage, "--with {}", error.what());
    }
  }
  plan::Plan plan = plan::load_plan(path, settings, overlays);
  const plan::ExperimentSpec& experiment = plan.experiment;
  const auto check = [&path](const auto& names) {
    try {
      names();
    } catch (const Error& error) {
      fail(error.exit(), "{}: {}", path, error.what());
    }
  };
  check([&] {
    if (!experiment.primary.empty()) measure::check_metric_name(experiment.primary);
    for (const std::string& guard : experiment.guards) measure::check_metric_name(guard);
    if (!experiment.outcome.empty()) measure::check_outcome(experiment.outcome, plan.base);
    for (const auto& [operation, us] : plan.base.device.fake_durations_us) check_operation(operation);
    for (const plan::Arm& arm : plan.arms) {
      for (const auto& [operation, us] : arm.scenario.device.fake_durations_us) check_operation(operation);
    }
  });
  return plan;
}

std::string SettingArguments::line() const {
  std::string text;
  for (const std::string& file : with) text += " --with " + file;
  for (const std::string& setting : set) text += " --set " + setting;
  if (!seed.empty()) text += " --seed " + seed;
  return text;
}

void add_settings(CLI::App& command, SettingArguments& arguments) {
  command
      .add_option("--with", arguments.with,
                  "Lay a part of a scenario over it, as in scenarios/loads/decode.json; repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
  // One value an option, so that a file name after it is not taken for another setting.
  command.add_option("--set", arguments.set, "Change a key of the scenario, as in storage.policy=bind:1; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_option("--seed", arguments.seed, "Seed of content, token streams and order; short for --set seed=N")
      ->type_name("N");
}

std::vector<plan::Setting> parse_settings(const SettingArguments& arguments) {
  std::vector<plan::Setting> parsed;
  for (const std::string& text : arguments.set) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      fail(Exit::usage, "--set {}: expected KEY=VALUE, as in storage.policy=bind:1", text);
    }
    parsed.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  if (!arguments.seed.empty()) parsed.push_back({"seed", arguments.seed});
  return parsed;
}

}  // namespace eb::cli
