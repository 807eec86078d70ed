// Blocking on a 32-bit word. The words may lie in memory shared by processes, so the private flag is not used.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace eb::backend::cpu {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

// Sleeps while `word` holds `value`, at most `timeout` (null: for ever). Returns on a wake, on a changed word, or for
// no reason (a signal): callers loop.
inline void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t value,
                       const timespec* timeout = nullptr) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, timeout, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace eb::backend::cpu
