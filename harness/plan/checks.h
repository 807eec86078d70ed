// What a scenario may not say although each value is fine by itself. Internal to harness/plan.
#pragma once

#include <string>

#include "harness/plan/scenario.h"

namespace eb::plan {

// `factor`: the experiment's, or empty. Errors: Error(usage).
void check_scenario(const Scenario& scenario, bool control, const std::string& factor);

}  // namespace eb::plan
