#include "harness/backend/cpu/groups.h"

#include <algorithm>

#include "harness/base/error.h"

namespace eb::backend::cpu {

Groups::Groups(const Arena& arena, std::span<const GroupSpec> groups, int rank, const std::atomic<bool>& interrupted,
               std::atomic<std::uint32_t>* waiting)
    : rank_(rank) {
  if (const std::size_t needed = arena_bytes(groups);
      arena.bytes < needed || (needed > 0 && arena.address == nullptr)) {
    fail(Exit::failure, "rank {}: the groups need an arena of {} bytes, {} were given", rank, needed, arena.bytes);
  }
  std::size_t offset = 0;
  for (const GroupSpec& group : groups) {
    if (std::adjacent_find(group.ranks.begin(), group.ranks.end(), std::greater_equal<>()) != group.ranks.end()) {
      fail(Exit::failure, "group {}: its ranks are not ascending", group.name);
    }
    const auto place = std::find(group.ranks.begin(), group.ranks.end(), rank);
    if (place != group.ranks.end()) {
      const auto index = static_cast<std::size_t>(place - group.ranks.begin());
      std::byte* base = group.ranks.size() > 1 ? arena.address + offset : nullptr;
      entries_.push_back({group, std::make_unique<Channel>(base, group.ranks.size(), index, interrupted, waiting)});
    }
    offset += channel_bytes(group.ranks.size());
  }
}

Channel& Groups::at(const GroupSpec& group) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& other) {
    return other.spec.name == group.name && other.spec.ranks == group.ranks;
  });
  if (entry == entries_.end()) {
    fail(Exit::failure, "rank {}: group {} of {} ranks is none of the groups that the arena was laid out for", rank_,
         group.name, group.ranks.size());
  }
  if (static_cast<int>(entry->channel->index()) != group.index) {
    fail(Exit::failure, "rank {}: its place in group {} is {}, not {}", rank_, group.name, entry->channel->index(),
         group.index);
  }
  return *entry->channel;
}

void Groups::interrupt() noexcept {
  for (Entry& entry : entries_) entry.channel->interrupt();
}

}  // namespace eb::backend::cpu
