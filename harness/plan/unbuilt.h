// What the scenario format knows and this version does not build: parsed, checked, then refused by name. One list,
// which later versions shrink. Internal to harness/plan.
#pragma once

#include <string>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::plan {

struct Unbuilt {
  std::string path;
  std::string value;    // "weighted" also stands for "weighted:..."
  std::string instead;  // what to use
};
[[nodiscard]] const std::vector<Unbuilt>& unbuilt();

// Throws Error(usage) "... is not in this version".
[[noreturn]] void refuse_unbuilt(const std::string& path, const std::string& value);
// Throws for the first key of `scenario` whose value is in the list.
void check_unbuilt(const Scenario& scenario);

}  // namespace eb::plan
