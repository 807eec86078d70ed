// Cells with scripted log ratios.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "harness/evidence/judge.h"

namespace eb::evidence {

// One pair a value of `log_ratios`, two blocks each.
inline Cell cell_of(const std::vector<double>& log_ratios, std::optional<double> floor = 0.0,
                    const std::string& metric = "lookup_us.p50") {
  Cell cell;
  cell.metric = metric;
  cell.floor = floor;
  for (std::size_t i = 0; i < log_ratios.size(); ++i) {
    const double b = 100 * std::exp(log_ratios[i]);
    cell.pairs.push_back({static_cast<int>(i), {{100, 100}, {b, b}, true}, ""});
  }
  return cell;
}

// Eight values of mean `mean` and a small spread.
inline std::vector<double> around(double mean, double spread = 0.002) {
  return {mean - 1.5 * spread, mean - spread,       mean - 0.5 * spread, mean - 0.2 * spread,
          mean + 0.2 * spread, mean + 0.5 * spread, mean + spread,       mean + 1.5 * spread};
}

inline Finding judged(const std::vector<double>& log_ratios, const Rules& rules = {},
                      std::optional<double> floor = 0.0) {
  return judge_figures(cell_of(log_ratios, floor), rules);
}

}  // namespace eb::evidence
