// A cell of result.json from its samples: used when it is written and when an archive is verified.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/result/json_value.h"

namespace eb::result {

// {n, median, q1, q3, mad, min, max, p95, p99, p99_9}; `absent` is the reason where there are no values, and a tail
// quantile without enough samples is null with its own.
[[nodiscard]] Json cell_statistics(std::vector<double> values, const std::string& absent);

}  // namespace eb::result
