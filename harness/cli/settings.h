// --set and --seed, which every command that takes a scenario has.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::cli {

void add_settings(CLI::App& command, std::vector<std::string>& settings, std::string& seed);

// "key=value" each; `seed` (empty: not given) comes last and wins. Errors: Error(usage) for one without "=".
[[nodiscard]] std::vector<plan::Setting> parse_settings(const std::vector<std::string>& settings,
                                                        const std::string& seed);

// The plan of a scenario file, with the names checked that only later parts know: metrics, and operations of the fake
// backend. Errors: Error(usage).
[[nodiscard]] plan::Plan load_scenario(const std::string& path, const std::vector<plan::Setting>& settings);

}  // namespace eb::cli
