// --with, --set and --seed, which every command that takes a scenario has.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::cli {

struct SettingArguments {
  std::vector<std::string> with;  // overlay files
  std::vector<std::string> set;
  std::string seed;

  // As typed, for the command line in a result.
  [[nodiscard]] std::string line() const;
};
void add_settings(CLI::App& command, SettingArguments& arguments);

// "key=value" each; `seed` (empty: not given) comes last and wins. Errors: Error(usage) for one without "=".
[[nodiscard]] std::vector<plan::Setting> parse_settings(const SettingArguments& arguments);

// The plan of a scenario file, with the names checked that only later parts know: metrics, and operations of the fake
// backend. Errors: Error(usage).
[[nodiscard]] plan::Plan load_scenario(const std::string& path, const std::vector<plan::Setting>& settings,
                                       const std::vector<std::string>& with = {});

}  // namespace eb::cli
