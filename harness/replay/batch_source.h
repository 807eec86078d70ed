// Turns a token model and the scenario's batches into what a step hashes. Deterministic in (seed, replica, step).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/plan/scenario.h"
#include "harness/replay/token_model.h"

namespace eb::replay {

// One step of one replica, in the form of kernels::HashArgs: every chunk is preceded in `context` by kLookBack
// look-back tokens of its request (-1 before the request's start). Compressed ids.
struct StepBatch {
  std::vector<std::int32_t> context;
  std::vector<std::int32_t> position;  // [tokens]
  std::vector<std::uint8_t> masked;    // [tokens]: dead tokens, whose gate is masked
  [[nodiscard]] std::int64_t tokens() const noexcept { return static_cast<std::int64_t>(position.size()); }
};

// Sequences of a batch: every prefill chunk is a new request (start of its stream); decode sequences live on from step
// to step, one token a step, with history. rotated: streams move on each step; repeat: every step is step 0.
class BatchSource {
 public:
  BatchSource(const plan::Scenario& scenario, std::shared_ptr<const TokenModel> model, int replica);
  [[nodiscard]] StepBatch step(std::int64_t step) const;

 private:
  plan::WorkloadSpec workload_;
  std::shared_ptr<const TokenModel> model_;
  std::uint64_t seed_;
  int replica_;
};

}  // namespace eb::replay
