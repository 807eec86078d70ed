// Whether the ranks still have, in a snapshot, what storage.bind_ranks gave them when they started.
#pragma once

#include <string>
#include <vector>

#include "harness/result/record.h"

namespace eb::result {

// Parts that were obtained at the start and that no longer hold in the snapshots `label`, by rank; parts that are known
// as lost already (at the start or by an earlier snapshot) are left out. Errors: as parse_snapshots().
[[nodiscard]] std::vector<supervise::DegradedBinding> newly_lost(const RerollRecord& reroll, const std::string& label);

}  // namespace eb::result
