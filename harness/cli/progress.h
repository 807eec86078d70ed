// A line on stderr that says where a run is. Only where stderr is a terminal.
#pragma once

#include <string>

#include "harness/measure/experiment.h"

namespace eb::cli {

// Passes every call on to `next`, and shows the slots as they go. Not thread-safe.
class ProgressLine final : public measure::Observer {
 public:
  // `shown` false: only passes on.
  ProgressLine(measure::Observer& next, const plan::Plan& plan, const std::vector<measure::RerollPlan>& schedule,
               bool shown);
  ~ProgressLine() override;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void reroll_starting(const measure::RerollPlan& reroll) override;
  void reroll_ready(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) override;
  void slot_starting(const measure::SlotInfo& slot) override;
  void slot_done(const measure::SlotInfo& slot, const std::vector<supervise::SlotReport>& reports,
                 const std::vector<measure::StepValues>& values) override;
  void warm_up_done(const measure::WarmUp& warm_up) override;
  void block_done(const measure::RerollPlan& reroll, int block) override;
  bool pair_done(int pair) override;
  void reroll_steady(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) override;
  void reroll_done(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) override;

 private:
  void show(const std::string& text);
  void clear();

  measure::Observer& next_;
  const plan::Plan& plan_;
  std::size_t rerolls_;
  std::size_t blocks_;
  std::size_t done_ = 0;  // blocks
  bool shown_;
  bool dirty_ = false;
};

}  // namespace eb::cli
