// The negative control: a gather of the shape that a lookup of the own tokens has, from a buffer that no arm can touch,
// on all units of the device. It runs before each step's clock starts, on the main stream, with the prefetch stream
// idle; if its time differs between the arms, something else than the arm changed. So nothing of it may follow from
// what arms change: not the lookup's grid cap, and not its split over the DP exchange.
#pragma once

#include <cstdint>

#include "harness/backend/backend.h"
#include "harness/rank/step/step_buffers.h"
#include "harness/rank/step/step_events.h"
#include "harness/rank/step/step_shape.h"

namespace eb::rank {

// Not thread-safe: the rank's host thread enqueues it.
class ControlGather {
 public:
  // A device-memory table (CPU backend: private memory, touched by this rank) of at most 64 MiB, and random ids for
  // `tokens` own tokens of a step, from `seed`.
  ControlGather(backend::Backend& backend, const StepShape& shape, const engram::Geometry& geometry,
                std::int64_t tokens, std::uint64_t seed, backend::StreamId stream);

  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  // Step `index` reads one of a few fixed id lists. Marks control_start and control_done; no token: nothing.
  void enqueue(backend::StreamId stream, EventLog& log, std::int64_t index, std::int64_t tokens) const;

 private:
  backend::Backend& backend_;
  int heads_;
  std::int64_t tokens_;
  kernels::TableView table_;
  BufferPtr rows_;
  BufferPtr ids_;
  BufferPtr out_;
};

}  // namespace eb::rank
