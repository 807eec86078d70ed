#include "harness/backend/cpu/event_pool.h"

#include "harness/backend/cpu/futex.h"
#include "harness/base/error.h"

namespace eb::backend::cpu {

void EventSlot::complete(std::int64_t time_ns) noexcept {
  device_ns = time_ns;
  if (state_.exchange(kDone, std::memory_order_acq_rel) == kAwaited) futex_wake_all(state_);
}

void EventSlot::wait() noexcept {
  std::uint32_t state = state_.load(std::memory_order_acquire);
  while (state != kDone) {
    if (state == kPending &&
        !state_.compare_exchange_strong(state, kAwaited, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    futex_wait(state_, kAwaited);
    state = state_.load(std::memory_order_acquire);
  }
}

void EventSlot::reset() noexcept {
  enqueue_ns = 0;
  device_ns = 0;
  state_.store(kPending, std::memory_order_release);
}

EventId EventPool::take() {
  if (taken_ == blocks_.size() * kBlock) blocks_.push_back(std::make_unique<EventSlot[]>(kBlock));
  return static_cast<EventId>(taken_++);
}

EventSlot& EventPool::at(EventId event) const {
  if (event >= taken_) {
    fail(Exit::failure, "event {} was asked for, but only {} events were taken since the last reset", event, taken_);
  }
  return blocks_[event / kBlock][event % kBlock];
}

void EventPool::reset() noexcept {
  for (std::size_t i = 0; i < taken_; ++i) blocks_[i / kBlock][i % kBlock].reset();
  taken_ = 0;
}

}  // namespace eb::backend::cpu
