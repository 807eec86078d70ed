#include "harness/cli/settings.h"

#include <algorithm>

#include "harness/backend/backend.h"
#include "harness/base/error.h"
#include "harness/measure/metrics.h"
#include "harness/plan/nearest.h"

namespace eb::cli {

namespace {

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

plan::Plan load_scenario(const std::string& path, const std::vector<plan::Setting>& settings) {
  plan::Plan plan = plan::load_plan(path, settings);
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
    for (const auto& [operation, us] : plan.base.device.fake_durations_us) check_operation(operation);
    for (const plan::Arm& arm : plan.arms) {
      for (const auto& [operation, us] : arm.scenario.device.fake_durations_us) check_operation(operation);
    }
  });
  return plan;
}

void add_settings(CLI::App& command, std::vector<std::string>& settings, std::string& seed) {
  // One value an option, so that a file name after it is not taken for another setting.
  command.add_option("--set", settings, "Change a key of the scenario, as in storage.policy=bind:1; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_option("--seed", seed, "Seed of content, token streams and order; short for --set seed=N")
      ->type_name("N");
}

std::vector<plan::Setting> parse_settings(const std::vector<std::string>& settings, const std::string& seed) {
  std::vector<plan::Setting> parsed;
  for (const std::string& text : settings) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      fail(Exit::usage, "--set {}: expected KEY=VALUE, as in storage.policy=bind:1", text);
    }
    parsed.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  if (!seed.empty()) parsed.push_back({"seed", seed});
  return parsed;
}

}  // namespace eb::cli
