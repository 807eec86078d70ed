// Fuzzes the scenario parser. Input: the scenario's text; behind a NUL byte, lines of --set. Whatever comes in, the
// parser answers with a usage error or with a plan whose expanded text gives the same plan again.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "harness/base/error.h"
#include "harness/plan/scenario.h"

namespace {

[[noreturn]] void broken(const char* what, const std::string& text) {
  std::fprintf(stderr, "scenario_fuzz: %s: %s\n", what, text.c_str());
  std::abort();
}

std::vector<eb::plan::Setting> settings_of(const std::string& text) {
  std::vector<eb::plan::Setting> settings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) settings.push_back({line.substr(0, equals), line.substr(equals + 1)});
  }
  return settings;
}

void check_plan(const eb::plan::Plan& plan) {
  if (plan.arms.empty()) broken("a plan without arms", plan.expanded_json);
  const eb::plan::Plan again = eb::plan::parse_plan(plan.expanded_json, "/scenario", {});
  if (again.sha256 != plan.sha256) broken("the expanded text gives another plan", plan.expanded_json);
  for (const eb::plan::Arm& arm : plan.arms) {
    const std::string text = eb::plan::to_json(arm.scenario);
    if (eb::plan::to_json(eb::plan::scenario_from_json(text)) != text) broken("a scenario changes on its way", text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::size_t nul = input.find('\0');
  const std::string settings = nul == std::string::npos ? std::string() : input.substr(nul + 1);
  try {
    check_plan(eb::plan::parse_plan(input.substr(0, nul), "/scenario", settings_of(settings)));
  } catch (const eb::Error& error) {
    if (error.exit() != eb::Exit::usage) broken("not a usage error", error.what());
  }
  return 0;
}
