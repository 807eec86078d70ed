// The axes of a sweep. Pure.
#pragma once

#include <string>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::cli {

struct Axis {
  std::string key;
  std::vector<std::string> values;  // as --set takes them
};

// "KEY=A,B,C" (commas inside brackets, braces and quotes belong to a value), "KEY=1-8" (all), "KEY=1-9+4" (1 5 9) or
// "KEY=1-256*4" (1 4 16 64 256); whole numbers. Errors: Error(usage) for another form, or more than 4096 values.
[[nodiscard]] Axis parse_axis(const std::string& text);

// Every combination, the last axis fastest; `zip`: the i-th value of all axes. Errors: Error(usage) for an axis given
// twice, axes of different length with `zip`, or more than 10000 cells.
[[nodiscard]] std::vector<std::vector<plan::Setting>> combine(const std::vector<Axis>& axes, bool zip);

}  // namespace eb::cli
