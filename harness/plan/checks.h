// What a scenario may not say although each value is fine by itself. Internal to harness/plan.
#pragma once

#include <string>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::plan {

// Which table modes a backing serves: the one table of valid combinations, also printed on the reference page.
// Policy and copies add: stock needs shm, shared, no pre-touch and one copy.
struct BackingRule {
  Backing backing;
  bool shared;      // one allocation with several readers
  bool private_;    // one allocation a replica and TP rank
  bool dp_sharded;  // one allocation a rank
};
[[nodiscard]] const std::vector<BackingRule>& backing_rules();

// `factor`: the experiment's, or empty. Errors: Error(usage).
void check_scenario(const Scenario& scenario, bool control, const std::string& factor);

}  // namespace eb::plan
