// Finds a group's part of the arena: the layout is the groups one after the other, the same in every process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/channel.h"

namespace eb::backend::cpu {

// The channels of one rank. Immutable after construction.
class Groups {
 public:
  // Errors: Error(failure) where the arena is smaller than arena_bytes(groups), or a group's ranks are not ascending.
  Groups(const Arena& arena, std::span<const GroupSpec> groups, int rank, const std::atomic<bool>& interrupted,
         std::atomic<std::uint32_t>* waiting);
  // Errors: Error(failure) where the arena was not laid out for the group, or the rank's place in it is not `index`.
  [[nodiscard]] Channel& at(const GroupSpec& group) const;
  void interrupt() noexcept;

 private:
  struct Entry {
    GroupSpec spec;
    std::unique_ptr<Channel> channel;
  };
  int rank_;
  std::vector<Entry> entries_;
};

}  // namespace eb::backend::cpu
