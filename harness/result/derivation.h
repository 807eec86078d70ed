// Samples once more from the events that a run stored: what `verify` holds the samples against.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/measure/metrics.h"
#include "harness/measure/order.h"
#include "harness/plan/layout.h"
#include "harness/rank/step/events.h"
#include "harness/result/json_value.h"
#include "harness/result/samples.h"

namespace eb::result {

// Reads the events of the run in `path` and derives the values of one slot after the other, in the order in which they
// are asked for. The plan says how many ranks there are, in which groups, and what each arm does; result.json's section
// `slots` says which slot ran which arm.
class Derivation {
 public:
  // Errors: Error(bad_data) for event files that are damaged.
  Derivation(const std::string& path, const Json& result, const Json& plan);

  // Why no sample can be derived (no event is stored, or this program does not understand the plan); empty where they
  // can.
  [[nodiscard]] const std::string& obstacle() const noexcept { return obstacle_; }
  [[nodiscard]] std::size_t events() const noexcept { return events_count_; }
  [[nodiscard]] std::size_t derived() const noexcept { return derived_; }

  // Errors: Error(bad_data) that names the line and the metric, where the sample is not what its slot's events give.
  void check(const SampleLine& line);
  // Errors: Error(bad_data) for a slot whose events give more samples than there are lines; `complete` false: slots
  // without any line are allowed, the run may have ended before they were written.
  void check_none_missing(bool complete) const;

 private:
  struct Slot {
    std::string kind;
    std::string arm;
    int reroll = 0;
    std::int64_t first_step = 0;
    std::int64_t steps = 0;
    std::vector<std::int64_t> window_launches;  // by rank; empty: steps of a model
    std::size_t lines = 0;
  };
  void read_slots(const Json& result);
  void read_plan(const std::string& path, const Json& plan, const Json& result);
  void read_events_of(const std::string& path);
  void derive(int slot);
  // Of the ranks that ran `slot`; null where the plan has no such re-roll or arm.
  [[nodiscard]] const plan::RunLayout* layout_of(const Slot& slot) const;
  [[nodiscard]] std::size_t arm_of(const Slot& slot) const;  // arms.size(): none
  [[nodiscard]] const Slot& slot_of(const SampleLine& line) const;

  std::string path_;
  std::string obstacle_;
  plan::Plan plan_;
  std::vector<plan::RunLayout> layouts_;  // of each arm
  std::map<int, measure::RerollPlan> rerolls_;
  std::vector<int> layers_;
  std::map<int, Slot> slots_;
  std::unordered_map<std::string, std::size_t> columns_;
  std::vector<bool> told_;                                             // by column: the run knew this metric
  std::map<int, std::vector<std::vector<rank::EventRecord>>> events_;  // [slot][rank]
  std::size_t events_count_ = 0;
  std::size_t derived_ = 0;
  int current_ = -1;
  std::vector<measure::StepValues> values_;  // of slot current_
};

}  // namespace eb::result
