// The way of one step, written once over the backend seam: hash, DP exchange, prefetch stream(s), release, backbone,
// wait, TP gather, wkv, gate (docs/design: the step).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/control/messages.h"
#include "harness/control/progress.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/rank/events.h"
#include "kernels/lookup.h"

namespace eb::rank {

// All groups of a run, in one order everywhere: lays out the arena and names the communicators.
[[nodiscard]] std::vector<backend::GroupSpec> run_groups(const plan::RunLayout& layout);

// Reads rows as the checkpoint or the synthetic content defines them, independent of the table in memory: the reference
// of a check.
class RowReference {
 public:
  virtual ~RowReference() = default;
  // Stored bytes of one row of entry `layer_index` of Geometry::layers.
  virtual void row(std::size_t layer_index, std::int64_t row, std::span<std::uint8_t> weights,
                   std::span<std::uint8_t> scales) const = 0;
  // BF16 weights: "layers.1.engram.wkv.weight" (dequantised), "....q_weight", "....k_weight". Elements [first, +size).
  virtual void weights(const std::string& name, std::int64_t fan_in, std::int64_t first, std::span<Bf16> out) const = 0;
};

struct SlotResult {
  std::vector<EventRecord> events;
  std::string facts_json;  // schema: see step_facts in docs/results.md
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
