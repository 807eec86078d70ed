// Collectives between rank processes through shared memory.
//
// Layout of a group with n > 1 members (a group of one needs no memory): n control lines of 64 bytes, rounded up to a
// page, then for each member two slots of kSlotBytes. Only its member writes a control line or a slot, so its pages lie
// where first touch by that member puts them.
//
// Protocol. A message travels in rounds of at most a slot. In round r a member writes its part into slot r % 2,
// publishes r + 1 in its control line, and reads the others' slots as each of them has published. Two slots make a
// second counter ("I have read it") needless: a member that has seen everybody publish round r - 1 knows that everybody
// has finished reading round r - 2, which is the last one that used slot r % 2. Waits sleep on the peer's counter.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "harness/backend/backend.h"

namespace eb::backend::cpu {

inline constexpr std::size_t kSlotBytes = std::size_t{1} << 20;

// Bytes of the arena that a group of `members` takes: a multiple of 4096, 0 for one member.
[[nodiscard]] std::size_t channel_bytes(std::size_t members) noexcept;

// Thrown out of a wait that was given up since the backend stops or has failed elsewhere.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("given up: the backend stops") {}
};

// One member's end of a group. One call at a time: calls of one member from two threads at once are an error.
class Channel {
 public:
  // `base` = the group's part of the arena (null for one member), zero filled when the first member came.
  // `interrupted` is polled; interrupt() makes sleepers look at once. `waiting` as in CpuOptions, may be null.
  Channel(std::byte* base, std::size_t members, std::size_t index, const std::atomic<bool>& interrupted,
          std::atomic<std::uint32_t>* waiting);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // As in Communicator, blocking. `stamp`: any number of this member; returns the largest of all members' stamps.
  // Errors: Error(failure) where the members' calls differ in operation, layer or size (the channel is unusable then);
  // Interrupted.
  std::int64_t all_gather(Op op, const std::byte* send, std::byte* recv, std::size_t bytes, std::int64_t stamp);
  std::int64_t all_to_all(Op op, const std::byte* send, std::byte* recv, std::size_t bytes, std::int64_t stamp);

  // Makes waits of this process look at `interrupted`. Any thread.
  void interrupt() noexcept;

  [[nodiscard]] std::size_t members() const noexcept { return members_; }
  [[nodiscard]] std::size_t index() const noexcept { return index_; }

 private:
  enum class Shape : std::uint8_t { gather = 1, exchange = 2 };
  struct Control;
  struct Call;

  [[nodiscard]] Control& control(std::size_t member) const noexcept;
  [[nodiscard]] std::byte* slot(std::size_t member, std::uint32_t round) const noexcept;
  std::int64_t run(const Call& call);
  void wait_for(std::size_t member, std::uint32_t published);
  void check_peer(const Call& call, std::size_t member, std::uint32_t round);

  std::byte* base_ = nullptr;
  std::size_t members_ = 1;
  std::size_t index_ = 0;
  const std::atomic<bool>& interrupted_;
  std::atomic<std::uint32_t>* waiting_ = nullptr;
  std::atomic<bool> in_call_{false};
  bool broken_ = false;
};

}  // namespace eb::backend::cpu
