// The collectors' view of a rank's tables.
#pragma once

#include <string>

#include "harness/rank/rank_main.h"

namespace eb::rank {

// JSON of what collectors see of the mapping (docs/collectors.md). Errors: Error(failure) where nothing is mapped.
[[nodiscard]] std::string table_snapshot(const RankContext& context, const TableStorage& storage,
                                         const std::string& label);

}  // namespace eb::rank
