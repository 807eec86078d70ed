#include "harness/cli/progress.h"

#include <fmt/format.h>

#include <cstdio>

namespace eb::cli {

ProgressLine::ProgressLine(measure::Observer& next, const plan::Plan& plan,
                           const std::vector<measure::RerollPlan>& schedule, bool shown)
    : next_(next), plan_(plan), rerolls_(schedule.size()), blocks_(0), shown_(shown) {
  for (const measure::RerollPlan& reroll : schedule) blocks_ += reroll.blocks.size();
}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(const std::string& text) {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K[{}/{}] {}", done_, blocks_, text);
  std::fflush(stderr);
  dirty_ = true;
}

void ProgressLine::clear() {
  if (!dirty_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  dirty_ = false;
}

void ProgressLine::reroll_starting(const measure::RerollPlan& reroll) {
  show(fmt::format("re-roll {} of {}: starting ranks, loading tables", reroll.index + 1, rerolls_));
  next_.reroll_starting(reroll);
}

void ProgressLine::reroll_ready(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) {
  next_.reroll_ready(reroll, storage);
}

void ProgressLine::slot_starting(const measure::SlotInfo& slot) {
  show(fmt::format("re-roll {} of {}: {} of arm {}", slot.reroll + 1, rerolls_, measure::name(slot.plan.kind),
                   plan_.arms[slot.plan.arm].name));
  next_.slot_starting(slot);
}

void ProgressLine::slot_done(const measure::SlotInfo& slot, const std::vector<supervise::SlotReport>& reports,
                             const std::vector<measure::StepValues>& values) {
  next_.slot_done(slot, reports, values);
}

void ProgressLine::warm_up_done(const measure::WarmUp& warm_up) { next_.warm_up_done(warm_up); }

void ProgressLine::block_done(const measure::RerollPlan& reroll, int block) {
  next_.block_done(reroll, block);
  ++done_;
}

bool ProgressLine::pair_done(int pair) { return next_.pair_done(pair); }

void ProgressLine::reroll_steady(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) {
  next_.reroll_steady(reroll, storage);
}

void ProgressLine::reroll_done(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) {
  next_.reroll_done(reroll, storage);
}

}  // namespace eb::cli
