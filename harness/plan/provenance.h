// Where a configuration comes from: stock vLLM can be set so, or it is research. Internal to harness/plan.
#pragma once

#include <string>

#include "harness/plan/scenario.h"

namespace eb::plan {

struct Provenance {
  bool research = false;
  std::string text;
};
[[nodiscard]] Provenance provenance_of(const Scenario& scenario);

}  // namespace eb::plan
