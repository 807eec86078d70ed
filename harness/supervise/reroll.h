// One re-roll: fresh rank processes, one allocation of the tables, and the slots that run on it. Owns the processes:
// none outlives this object, and a failed or killed rank is named with the stage it failed in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/control/messages.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/rank/step/events.h"
#include "harness/supervise/binding.h"
#include "harness/supervise/copies.h"

namespace eb::supervise {

struct Options {
  std::int64_t timeout_ms = 60'000;  // without any progress of a rank; names the rank that hangs
  bool instrument = true;
  bool trace = false;  // timed slots keep kernel records
  // A lost part of storage.bind_ranks and a policy that is refused are recorded instead of ending the run.
  bool allow_degraded = false;
};

struct StageReport {  // of one rank
  int rank = 0;
  control::Stage stage{};
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t minor_faults = 0;
  std::int64_t major_faults = 0;
  std::int64_t allocated_before_bytes = -1;  // as control::StageDone
  std::int64_t allocated_after_bytes = -1;
};

struct SnapshotReport {
  int rank = 0;
  std::string label;
  std::string json;
};

struct DegradedBinding {
  int rank = 0;
  std::string part;  // as control::LostPart
  std::string lost;
};

// A policy that the kernel or the container did not take.
struct RefusedPolicy {
  int rank = 0;  // that asked for it
  std::string text;
};

struct StorageReport {
  std::vector<StageReport> stages;
  std::vector<SnapshotReport> snapshots;
  std::vector<RankBinding> bindings;            // by rank: what was asked for
  std::vector<DegradedBinding> degraded;        // at the start, by rank; empty unless Options::allow_degraded
  std::vector<RefusedPolicy> policies_refused;  // by rank; empty unless Options::allow_degraded
  std::vector<CopyDigest> digests;              // by backing; storage.copies per-numa-node only, all of a shard equal
  std::vector<int> pids;                        // of each rank
  std::int64_t ranks_ready_ns = 0;              // from the start of the processes to the last Ready
};

struct SlotReport {  // of one rank
  int rank = 0;
  std::vector<rank::EventRecord> events;
  std::string facts_json;
  std::string trace_json{};          // of a traced slot
  std::int64_t window_launches = 1;  // lookups of each table in a step; 0: the rank was idle
};

class Reroll {
 public:
  // Starts the ranks and runs the life cycle up to `after_load`. `layout`: of this machine (machine_layout()). Errors:
  // Error(failure) with every rank and stage that failed ("rank 3 (dp 1, tp 1): register: ..."), after undoing what was
  // done; Error(bad_data) where copies of a shard differ after the load; Error(interrupted) on SIGINT/SIGTERM.
  Reroll(const plan::Scenario& scenario, const plan::RunLayout& layout, const Options& options);
  ~Reroll();
  Reroll(const Reroll&) = delete;
  Reroll& operator=(const Reroll&) = delete;

  // One slot on all ranks. Errors: as above; Error(bad_data) where a check failed, with rank, layer, token and column.
  [[nodiscard]] std::vector<SlotReport> run_slot(const control::RunSlot& slot);
  // A snapshot of all ranks, added to storage().
  void snapshot(const std::string& label);
  // unregister, unmap, Stop; waits for the processes.
  void tear_down();

  [[nodiscard]] const StorageReport& storage() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Removes what a killed earlier run may have left (stock names whose owner is gone).
void clean_stale();

// Set once at start-up: SIGINT and SIGTERM make the running re-roll end with Error(interrupted).
void install_signal_handlers();

// What would stop `run` on this machine, in the order of exit codes: skipped before failure. Empty: nothing.
struct Obstacle {
  Exit exit = Exit::failure;
  std::string text;
};
// `rehearsal`: copies of one node alone are no obstacle. `allow_degraded`: nor are parts of storage.bind_ranks that
// cpusets refuse, and nodes too full for their share of an interleave, which the kernel then puts elsewhere.
[[nodiscard]] std::vector<Obstacle> preflight(const plan::Plan& plan, bool rehearsal = false,
                                              bool allow_degraded = false);
// Takes the controls out of the plan that this machine lacks something for (a GPU for hbm), and names them in
// plan.skipped_controls. preflight() counts them as left out, whether this was called or not.
void skip_controls(plan::Plan& plan, bool rehearsal = false);

}  // namespace eb::supervise
