// Events of the CUDA backend, on the host's time base.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/cuda/check.h"

namespace eb::backend::cuda {

// All events of a slot are measured from one base event, whose place on the host's clock is found by bracketing it
// between two clock reads. The base is set anew with each slot: CUDA gives distances as float milliseconds, which hold
// 1 us up to about 16 s only. Host thread only.
class EventPool {
 public:
  EventPool();
  [[nodiscard]] EventId take();
  // Gives all back and finds a new base. Everything must be synchronised.
  void reset();
  void record(EventId event, cudaStream_t stream);
  // Into a graph that is being captured: each of its launches records the event then set in its node.
  void capture(EventId event, cudaStream_t stream) const;
  // The event is recorded by a graph that is launched now.
  void launched(EventId event, std::int64_t now) { entries_.at(event).enqueue_ns = now; }
  [[nodiscard]] cudaEvent_t at(EventId event) const;
  [[nodiscard]] bool recorded(EventId event) const { return event < taken_ && entries_[event].enqueue_ns != 0; }
  [[nodiscard]] EventTimes times(EventId event) const;
  // Half the bracket around the base: by so much the device times may be off the host's clock, all by the same amount.
  [[nodiscard]] std::int64_t base_error_ns() const noexcept { return base_error_ns_; }

 private:
  void set_base();

  struct Entry {
    OwnedEvent event;
    std::int64_t enqueue_ns = 0;  // 0 = not recorded since it was taken
  };
  OwnedStream stream_;
  OwnedEvent base_;
  std::int64_t base_ns_ = 0;
  std::int64_t base_error_ns_ = 0;
  std::vector<Entry> entries_;
  std::size_t taken_ = 0;
};

}  // namespace eb::backend::cuda
