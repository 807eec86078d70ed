// Relative paths of a scenario lie beside the scenario file. Internal to harness/plan.
#pragma once

#include <string>

#include "harness/plan/keys.h"

namespace eb::plan {

// Absolute paths and an unknown folder leave `path` as it is.
[[nodiscard]] std::string resolve_path(const Target& target, const std::string& path);

}  // namespace eb::plan
