// Runs the schedule of a plan: re-rolls, checks, warm-up, blocks. Knows the order and what is timed; how a slot is run
// (Executor) and what becomes of its events (Observer) are seams, so that the order is tested without a process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/control/messages.h"
#include "harness/measure/metrics.h"
#include "harness/measure/order.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/supervise/reroll.h"

namespace eb::measure {

// One allocation and its ranks. Errors as supervise::Reroll.
class Executor {
 public:
  virtual ~Executor() = default;
  [[nodiscard]] virtual std::vector<supervise::SlotReport> run_slot(const control::RunSlot& slot) = 0;
  virtual void snapshot(const std::string& label) = 0;
  virtual void tear_down() = 0;
  [[nodiscard]] virtual const supervise::StorageReport& storage() const noexcept = 0;
};
using ExecutorFactory = std::function<std::unique_ptr<Executor>(const plan::Scenario&, const plan::RunLayout&)>;

// The real thing: a supervise::Reroll each.
[[nodiscard]] ExecutorFactory reroll_factory(const supervise::Options& options);

struct SlotInfo {
  std::uint16_t slot = 0;
  int reroll = 0;
  SlotPlan plan;
  std::int64_t first_step = 0;
  std::vector<std::int64_t> window_launches;  // by rank (SlotShape); empty before the slot is done
  std::int64_t start_ns = 0;                  // as the supervisor saw it, messages included
  std::int64_t end_ns = 0;
};

// How the warm-up of one arm ended.
struct WarmUp {
  std::size_t arm = 0;
  int reroll = 0;
  std::int64_t steps = 0;
  std::vector<double> window_step_us;  // median step of each window
  std::optional<double> slope;         // relative change over the last three windows
  bool steady = false;                 // |slope| < 1 %; false: the cap was hit
};

// Called in the order of the run, on the caller's thread. Everything has a default, so that a test takes what it needs.
// Where a re-roll holds several allocations (RerollPlan::coresident), reroll_starting, _ready, _steady and _done come
// once for each of them, with a plan that names the arm as allocated_for and as its only arm.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void reroll_starting(const RerollPlan& /*reroll*/) {}
  virtual void reroll_ready(const RerollPlan& /*reroll*/, const supervise::StorageReport& /*storage*/) {}
  virtual void slot_starting(const SlotInfo& /*slot*/) {}
  // `values` is empty for slots that are not timed.
  virtual void slot_done(const SlotInfo& /*slot*/, const std::vector<supervise::SlotReport>& /*reports*/,
                         const std::vector<StepValues>& /*values*/) {}
  virtual void warm_up_done(const WarmUp& /*warm_up*/) {}
  virtual void block_done(const RerollPlan& /*reroll*/, int /*block*/) {}
  // After the last re-roll of a pair, controls included: true where the run has enough pairs.
  virtual bool pair_done(int /*pair*/) { return false; }
  // After the steady snapshot, before anything is unmapped.
  virtual void reroll_steady(const RerollPlan& /*reroll*/, const supervise::StorageReport& /*storage*/) {}
  virtual void reroll_done(const RerollPlan& /*reroll*/, const supervise::StorageReport& /*storage*/) {}
};

// Slope of the last three of `windows` relative to their mean: least squares, over the three; nothing below three.
[[nodiscard]] std::optional<double> relative_slope(const std::vector<double>& windows);

// Timed steps carry the negative control: two arms and two pairs or more, and not turned off.
[[nodiscard]] bool has_negative_control(const plan::Plan& plan);

// Backbone layers that have a table in any arm, ascending: one set of columns for the whole run.
[[nodiscard]] std::vector<int> engram_layers(const plan::Plan& plan);

// Every slot of a re-roll goes on where the one before it stopped (rotated indices never come twice), and starts at a
// multiple of the batch lists' common period, so that all slots see the same sequence of batch shapes. Each re-roll
// starts at step 0: pairs see the same indices. The observed slots of a re-roll come after its blocks; a pair after
// which Observer::pair_done says so is the last. `instrumented` false: the ranks record only what they depend on, so
// there are no values, and the warm-up runs to its cap. Errors: those of the executor and the observer.
void run_experiment(const plan::Plan& plan, const std::vector<RerollPlan>& schedule,
                    const std::vector<plan::RunLayout>& arm_layouts, const ExecutorFactory& factory, Observer& observer,
                    bool instrumented = true);

}  // namespace eb::measure
