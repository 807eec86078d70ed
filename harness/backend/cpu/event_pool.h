// Events of the CPU backend: one 32-bit state word each, so that recording one costs a clock read and an exchange.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "harness/backend/backend.h"

namespace eb::backend::cpu {

// The host writes enqueue_ns and reads device_ns after completion; the recording stream writes device_ns before it
// completes the event. Any number of streams and the host may wait.
class EventSlot {
 public:
  std::int64_t enqueue_ns = 0;  // 0 = not recorded since it was taken (host thread only)
  std::int64_t device_ns = 0;

  // Marks the event complete; a system call only if somebody sleeps on it.
  void complete(std::int64_t time_ns) noexcept;
  // Blocks until complete.
  void wait() noexcept;
  [[nodiscard]] bool done() const noexcept { return state_.load(std::memory_order_acquire) == kDone; }
  void reset() noexcept;

 private:
  enum : std::uint32_t { kPending = 0, kDone = 1, kAwaited = 2 };
  std::atomic<std::uint32_t> state_{kPending};
};

// Hands out events one by one and takes all back at once. Host thread only; the slots keep their addresses, so streams
// hold pointers to them. Memory grows by blocks and is kept: the second slot of a run allocates nothing.
class EventPool {
 public:
  [[nodiscard]] EventId take();
  // Errors: Error(failure) for an id that was not taken.
  [[nodiscard]] EventSlot& at(EventId event) const;
  void reset() noexcept;
  [[nodiscard]] std::size_t taken() const noexcept { return taken_; }

 private:
  static constexpr std::size_t kBlock = 4096;
  std::vector<std::unique_ptr<EventSlot[]>> blocks_;
  std::size_t taken_ = 0;
};

}  // namespace eb::backend::cpu
