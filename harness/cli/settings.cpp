#include "harness/cli/settings.h"

#include "harness/base/error.h"

namespace eb::cli {

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
