// Slots of whole steps of a model: hash, lookups, backbone, gather, projection, gate (workload.kind steps).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "harness/rank/step/slot_work.h"
#include "harness/rank/step/step_buffers.h"
#include "harness/rank/step/step_check.h"
#include "harness/rank/step/step_program.h"

namespace eb::rank {

class StepWork final : public SlotWork {
 public:
  // Uploads the weights and opens the communicators: every rank of the run makes it, in one order.
  explicit StepWork(SlotShared& shared);

  [[nodiscard]] std::int64_t prepare(const control::RunSlot& slot, const plan::Scenario& arm, EventLog& log) override;
  [[nodiscard]] backend::EventId enqueue(std::int64_t index) override;
  void finish(const HostWork& host, SlotResult& result) override;

 private:
  void count_steps();
  StepOptions options();
  std::uint32_t shape_number(const StepTokens& tokens);
  HiddenCapture make_capture(std::int64_t valid);
  HiddenSamples samples(const HiddenCapture& capture);
  StepOutput output(bool all);
  CheckFacts check(const StepOutput& out);

  SlotShared& shared_;
  backend::Backend& backend_;
  Communicators groups_;
  StepWeights weights_;
  std::optional<StepBuffers> buffers_;
  std::map<std::array<std::int64_t, 8>, std::uint32_t> shapes_;  // of steps, by their token counts
  // Of the running slot.
  control::RunSlot slot_;
  plan::Scenario arm_;
  std::optional<SlotBatches> batches_;
  std::vector<StepTokens> step_list_;
  std::optional<StepProgram> program_;
  std::optional<HiddenCapture> capture_;
  SlotTotals totals_;
};

}  // namespace eb::rank
