// The pass with collectors on, which follows the timed one: what was seen, and what seeing it cost.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectors/pass_collector.h"
#include "harness/measure/experiment.h"
#include "harness/result/json_value.h"

namespace eb::result {

struct Record;

// One observed slot.
struct ObservedSlot {
  measure::SlotInfo slot;
  std::vector<double> step_us;      // of every step and replica
  Json collectors = Json::array();  // {name, kernel_replay, seen} each
  bool kernel_replay = false;       // one of them ran kernels again: no times
};

// The collectors that are on while the slot runs.
class Observation {
 public:
  void start(std::span<const int> pids);
  // `facts` of the ranks: what a rank's own collectors saw stands in its "observed", a list of the same form.
  [[nodiscard]] ObservedSlot stop(const measure::SlotInfo& slot, const std::vector<Json>& facts,
                                  const std::vector<measure::StepValues>& values, std::size_t step_column);

 private:
  std::vector<std::unique_ptr<collectors::PassCollector>> collectors_;
};

// Bytes a step by arm, over its observed slots: what collectors state under `what` as a number. {value: null, reason}
// where none does.
[[nodiscard]] Json counted_bytes(const Record& record, const std::string& what);

// The section "observed_pass" of result.json (docs/results.md).
[[nodiscard]] Json observed_pass_section(const Record& record);

}  // namespace eb::result
