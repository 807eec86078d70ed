// Arms that change more than the factor: the exceptions to "one change at a time", each named here with its reason.
// Internal to harness/plan.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "harness/plan/keys.h"

namespace eb::plan {

struct JointChange {
  const char* factor;                                        // of the experiment that may have such an arm
  std::vector<std::pair<const char*, const char*>> changes;  // key and value, all of them together
  const char* why;                                           // one cannot be without the other
};
[[nodiscard]] const std::vector<JointChange>& joint_changes();

// `changes`: of one arm of experiment.joint_arms. Errors: Error(usage) that lists what may change together.
void check_joint_change(const std::string& factor, const std::vector<std::pair<std::string, Json>>& changes);

// One line of Markdown an exception.
[[nodiscard]] std::string joint_reference();

}  // namespace eb::plan
