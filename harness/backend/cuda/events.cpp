#include "harness/backend/cuda/events.h"

#include <cmath>

#include "harness/base/os.h"

namespace eb::backend::cuda {

EventPool::EventPool() { set_base(); }

void EventPool::set_base() {
  constexpr int kTries = 10;
  base_error_ns_ = INT64_MAX;
  OwnedEvent trial;
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t before = now_ns();
    check(cudaEventRecord(trial.get(), stream_.get()), "record of the base event");
    check(cudaEventSynchronize(trial.get()), "wait for the base event");
    const std::int64_t after = now_ns();
    if ((after - before) / 2 < base_error_ns_) {
      base_error_ns_ = (after - before) / 2;
      base_ns_ = before + base_error_ns_;
      std::swap(base_, trial);
    }
  }
}

EventId EventPool::take() {
  if (taken_ == entries_.size()) entries_.emplace_back();
  entries_[taken_].enqueue_ns = 0;
  return static_cast<EventId>(taken_++);
}

// Twice as many as were needed: a slot may be longer than the one before it, and creating events takes time that would
// fall into its steps.
void EventPool::reset() {
  while (entries_.size() < 2 * taken_) entries_.emplace_back();
  taken_ = 0;
  set_base();
}

cudaEvent_t EventPool::at(EventId event) const {
  if (event >= taken_) fail(Exit::failure, "event {} was not taken", event);
  return entries_[event].event.get();
}

void EventPool::record(EventId event, cudaStream_t stream) {
  const cudaEvent_t handle = at(event);
  entries_[event].enqueue_ns = now_ns();
  check(cudaEventRecord(handle, stream), "cudaEventRecord");
}

void EventPool::capture(EventId event, cudaStream_t stream) const {
  check(cudaEventRecordWithFlags(at(event), stream, cudaEventRecordExternal), "cudaEventRecordWithFlags");
}

EventTimes EventPool::times(EventId event) const {
  const cudaEvent_t handle = at(event);
  if (entries_[event].enqueue_ns == 0) fail(Exit::failure, "event {} was not recorded", event);
  float ms = 0;
  check(cudaEventElapsedTime(&ms, base_.get(), handle), "cudaEventElapsedTime");
  return {entries_[event].enqueue_ns, base_ns_ + std::llround(static_cast<double>(ms) * 1e6)};
}

}  // namespace eb::backend::cuda
