// Samples of a run by arm and metric, and their summaries. Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "harness/measure/metrics.h"
#include "harness/stats/summary.h"

namespace eb::measure {

struct BlockMedian {
  int reroll = 0;
  int block = 0;
  stats::Summary summary;
};

class Cells {
 public:
  explicit Cells(std::size_t arms);

  void add(std::size_t arm, int reroll, int block, const StepValues& values);

  // Steps of each arm so far; and back to such a state: what was added since is dropped.
  [[nodiscard]] std::vector<std::size_t> counts() const;
  void drop_behind(const std::vector<std::size_t>& counts);

  // Values of all replicas and steps, in the order they were added; NaN (absent) ones are left out.
  [[nodiscard]] std::vector<double> pooled(std::size_t arm, std::size_t column) const;
  [[nodiscard]] std::vector<double> of_replica(std::size_t arm, std::size_t column, std::size_t replica) const;
  [[nodiscard]] std::vector<double> of_rank(std::size_t arm, std::size_t column, std::size_t rank) const;
  // One entry a block that has a value, in the order of the run.
  [[nodiscard]] std::vector<BlockMedian> blocks(std::size_t arm, std::size_t column) const;
  // Calls visit(reroll, block, StepValues) for every step of an arm, in the order they were added.
  template <typename Visit>
  void for_each(std::size_t arm, Visit visit) const {
    for (const Step& step : arms_.at(arm)) visit(step.reroll, step.block, step.values);
  }
  // Summary of the pooled values; empty where there are none.
  [[nodiscard]] std::optional<stats::Summary> summary(std::size_t arm, std::size_t column) const;

 private:
  struct Step {
    int reroll;
    int block;
    StepValues values;
  };
  std::vector<std::vector<Step>> arms_;
};

}  // namespace eb::measure
