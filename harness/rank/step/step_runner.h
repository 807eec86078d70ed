// The way of one step, written once over the backend seam: hash, DP exchange, prefetch stream(s), release, backbone,
// wait, TP gather, wkv, gate (docs/design: the step).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/control/messages.h"
#include "harness/control/progress.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/rank/step/events.h"
#include "harness/rank/tables/row_reference.h"
#include "kernels/lookup.h"

namespace eb::rank {

// All groups of a run, in one order everywhere: lays out the arena and names the communicators.
[[nodiscard]] std::vector<backend::GroupSpec> run_groups(const plan::RunLayout& layout);

struct SlotResult {
  std::vector<EventRecord> events;
  std::string facts_json;            // schema: see step_facts in docs/results.md
  std::string trace_json{};          // of a traced slot (docs/results.md, trace)
  std::int64_t window_launches = 1;  // lookups of each table between lookup_start and lookup_done; 0: an idle rank
};

struct StepRunnerInput {
  const plan::Scenario* scenario = nullptr;
  const plan::RunLayout* layout = nullptr;
  const engram::Geometry* geometry = nullptr;
  int rank = 0;
  backend::Backend* backend = nullptr;
  std::vector<kernels::TableView> tables;  // of each layer, device addresses; empty for backing stub
  const std::byte* host_tables = nullptr;  // this process's mapping of the backing; null: not in host memory
  const RowReference* reference = nullptr;
  control::RankProgress* progress = nullptr;  // may be null
  bool instrument = true;
};

class StepRunner {
 public:
  // Allocates buffers, uploads weights, opens communicators.
  explicit StepRunner(const StepRunnerInput& input);
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Runs slot.steps steps of `arm` (its prefetch.* and workload.*). Errors: Error(bad_data) where a check failed,
  // naming layer, token, column, wanted and found; Error(failure) from the backend.
  [[nodiscard]] SlotResult run(const control::RunSlot& slot, const plan::Scenario& arm);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace eb::rank
