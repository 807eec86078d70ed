// Records a slot's events and turns them into the stored form.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/rank/step/events.h"

namespace eb::rank {

// One slot's events. mark() is for looking on only and vanishes without instrumentation; depend() is an event that some
// stream or the host waits for, and is there always. Neither makes anything wait by itself.
class EventLog {
 public:
  EventLog(backend::Backend& backend, bool instrument) : backend_(backend), instrument_(instrument) {}

  void begin_step(std::uint32_t step) noexcept { step_ = step; }
  void mark(backend::StreamId stream, EventKind kind, int layer = -1);
  backend::EventId depend(backend::StreamId stream, EventKind kind, int layer = -1);
  backend::EventId depend_unnamed(backend::StreamId stream);  // no kind of its own: not part of the records

  // Two records an event, host clock then device clock, in the order of recording; gives all events back. Everything
  // must be synchronised.
  [[nodiscard]] std::vector<EventRecord> take(std::uint16_t slot);

 private:
  struct Entry {
    backend::EventId event;
    std::uint32_t step;
    EventKind kind;
    std::int16_t layer;
  };
  backend::Backend& backend_;
  bool instrument_;
  std::uint32_t step_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace eb::rank
