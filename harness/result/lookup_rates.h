// Lookup rates beside BW_effective, from the cells of a result and nothing else: the section "lookup_rates".
#pragma once

#include "harness/result/json_value.h"

namespace eb::result {

// One entry an arm that has a lookup rate: medians of rows_per_s and bare_rows_per_s of each rank (all tables together,
// and each), of the aggregate rates, and the lookup's share of BW_effective. `cells`: the section of result.json.
[[nodiscard]] Json lookup_rates(const Json& cells);

}  // namespace eb::result
