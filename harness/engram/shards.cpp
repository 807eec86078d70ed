#include "harness/engram/shards.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "harness/base/error.h"

namespace eb::engram {

std::int64_t Shard::table_bytes(const Geometry& geometry, Layout layout) const noexcept {
  std::int64_t total = 0;
  for (const RowRange& range : rows) total += range.count * geometry.row_stride(layout);
  return total;
}

Shard make_shard(const Geometry& geometry, int shards, int index) {
  const int heads = geometry.columns;
  if (shards < 1) fail(Exit::usage, "shards is {}, must be 1 or more", shards);
  if (index < 0 || index >= shards)
    fail(Exit::usage, "shard {} does not exist: there are {} (0..{})", index, shards, shards - 1);
  Shard shard;
  shard.shards = shards;
  shard.index = index;
  shard.part = (heads + shards - 1) / shards;
  // The last shard must have a column; asked so that shards * part cannot overflow.
  if (shards > heads || (shards - 1) * shard.part >= heads) {
    fail(Exit::usage, "Engram sharding leaves ranks without hash heads: {} heads over {} shards", heads, shards);
  }
  shard.first_column = index * shard.part;
  shard.columns = std::min(shard.first_column + shard.part, heads) - shard.first_column;
  for (const LayerGeometry& layer : geometry.layers) {
    const auto first = static_cast<std::size_t>(shard.first_column);
    const auto last = first + static_cast<std::size_t>(shard.columns) - 1;
    const std::int64_t begin = layer.head_offsets[first];
    shard.rows.push_back({begin, layer.head_offsets[last] + layer.head_rows[last] - begin});
  }
  return shard;
}

int edp_group_size(std::span<const int> host_of_rank, int dp, int replica_size) {
  const auto world = static_cast<std::int64_t>(host_of_rank.size());
  if (dp < 1 || replica_size < 1)
    fail(Exit::usage, "dp is {} and a replica has {} ranks: both must be 1 or more", dp, replica_size);
  if (world != static_cast<std::int64_t>(dp) * replica_size) {
    fail(Exit::usage, "{} ranks are no {} replicas of {} ranks", world, dp, replica_size);
  }
  // Ranks of one host, in the order in which hosts appear: a host that comes back later breaks the contiguous range.
  std::set<int> seen;
  std::vector<std::int64_t> ranks_of_host;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    if (rank > 0 && host_of_rank[rank] == host_of_rank[rank - 1]) {
      ++ranks_of_host.back();
    } else {
      if (!seen.insert(host_of_rank[rank]).second) return 1;
      ranks_of_host.push_back(1);
    }
  }
  if (std::ranges::any_of(ranks_of_host, [&](std::int64_t n) { return n != ranks_of_host.front(); })) return 1;
  const auto hosts = static_cast<std::int64_t>(ranks_of_host.size());
  if (world % (hosts * replica_size) != 0) return 1;
  return static_cast<int>(std::gcd(static_cast<std::int64_t>(dp), world / (hosts * replica_size)));
}

std::vector<std::vector<int>> edp_groups(int ranks, int replica_size, int group_size) {
  if (replica_size < 1 || group_size < 1 || ranks < 1 ||
      ranks % (static_cast<std::int64_t>(replica_size) * group_size) != 0) {
    fail(Exit::usage, "{} ranks are no whole number of groups of {} replicas of {} ranks", ranks, group_size,
         replica_size);
  }
  std::vector<std::vector<int>> groups;
  for (int base = 0; base < ranks; base += replica_size * group_size) {
    for (int place = 0; place < replica_size; ++place) {
      std::vector<int> members;
      for (int replica = 0; replica < group_size; ++replica) members.push_back(base + replica * replica_size + place);
      groups.push_back(std::move(members));
    }
  }
  return groups;
}

}  // namespace eb::engram
