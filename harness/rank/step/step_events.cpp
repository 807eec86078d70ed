#include "harness/rank/step/step_events.h"

namespace eb::rank {

void EventLog::mark(backend::StreamId stream, EventKind kind, int layer) {
  if (instrument_) depend(stream, kind, layer);
}

backend::EventId EventLog::depend(backend::StreamId stream, EventKind kind, int layer) {
  const backend::EventId event = depend_unnamed(stream);
  entries_.push_back({event, step_, kind, static_cast<std::int16_t>(layer)});
  return event;
}

backend::EventId EventLog::depend_unnamed(backend::StreamId stream) {
  const backend::EventId event = backend_.new_event();
  backend_.record(stream, event);
  return event;
}

std::vector<EventRecord> EventLog::take(std::uint16_t slot) {
  std::vector<EventRecord> records;
  records.reserve(entries_.size() * 2);
  for (const Entry& entry : entries_) {
    const backend::EventTimes times = backend_.times(entry.event);
    for (const Clock clock : {Clock::host, Clock::device}) {
      EventRecord record;
      record.step = entry.step;
      record.slot = slot;
      record.kind = static_cast<std::uint16_t>(entry.kind);
      record.layer = entry.layer;
      record.clock = static_cast<std::uint8_t>(clock);
      record.time_ns = clock == Clock::host ? times.enqueue_ns : times.device_ns;
      records.push_back(record);
    }
  }
  entries_.clear();
  backend_.reset_events();
  return records;
}

}  // namespace eb::rank
