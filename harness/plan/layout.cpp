#include "harness/plan/layout.h"

#include <bit>
#include <map>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/plan/ledger_input.h"

namespace eb::plan {

namespace {

std::int64_t to_page(std::int64_t bytes) {
  const auto page = static_cast<std::int64_t>(page_bytes());
  return (bytes + page - 1) / page * page;
}

// Replicas that share (shared) or split (dp_sharded) the tables. Errors: a mode that needs peers and has none.
int group_size(const ParallelSpec& parallel) {
  if (parallel.table_mode == TableMode::private_) return 1;
  const std::vector<int> one_host(static_cast<std::size_t>(parallel.tp) * static_cast<std::size_t>(parallel.dp), 0);
  const int size = engram::edp_group_size(one_host, parallel.dp, parallel.tp);
  if (size < 2) {
    fail(Exit::usage,
         "parallel.table_mode {} needs replicas that share a host; parallel.dp is {}, so that a replica has no peers: "
         "raise parallel.dp or use private",
         name(parallel.table_mode), parallel.dp);
  }
  return size;
}

// What a rank's tables are one of: ranks with equal keys read one backing.
std::pair<int, int> backing_key(const RankPlace& place, TableMode mode, int group) {
  switch (mode) {
    case TableMode::shared:
      return {place.replica / group, place.tp_rank};
    case TableMode::private_:
      return {place.replica, place.tp_rank};
    case TableMode::dp_sharded:
      return {place.replica, place.tp_rank};  // each rank has a shard of its own
  }
  return {};
}

std::string ranks_by_node(const std::map<int, std::vector<int>>& readers) {
  std::string text;
  for (const auto& [node, ranks] : readers) {
    text += fmt::format("{}node {} (rank {})", text.empty() ? "" : ", ", node, fmt::join(ranks, ", "));
  }
  return text;
}

// Readers of a backing by the node of their device.
std::map<int, std::vector<int>> readers_by_node(const BackingPlace& backing, std::span<const int> rank_nodes,
                                                const std::string& asked) {
  std::map<int, std::vector<int>> readers;
  for (const int rank : backing.readers) {
    const auto place = static_cast<std::size_t>(rank);
    if (place >= rank_nodes.size() || rank_nodes[place] < 0) {
      fail(Exit::failure,
           "{}: the system states no NUMA node for the device of rank {}; name nodes with storage.policy bind", asked,
           rank);
    }
    readers[rank_nodes[place]].push_back(rank);
  }
  return readers;
}

void split_into_copies(RunLayout& layout, std::span<const int> rank_nodes) {
  std::vector<BackingPlace> copies;
  for (const BackingPlace& one : layout.backings) {
    for (const auto& [node, readers] : readers_by_node(one, rank_nodes, "storage.copies per-numa-node")) {
      BackingPlace copy = one;
      copy.index = static_cast<int>(copies.size());
      copy.node = node;
      copy.readers = readers;
      copy.leader = readers.front();
      for (const int rank : readers) {
        RankPlace& place = layout.ranks[static_cast<std::size_t>(rank)];
        place.backing = copy.index;
        place.backing_leader = rank == copy.leader;
      }
      copies.push_back(std::move(copy));
    }
  }
  layout.backings = std::move(copies);
}

}  // namespace

void place_backings(RunLayout& layout, const StorageSpec& storage, std::span<const int> rank_nodes) {
  if (storage.backing == Backing::stub || storage.backing == Backing::hbm) return;
  if (storage.copies == Copies::per_numa_node) return split_into_copies(layout, rank_nodes);
  if (storage.policy.kind != PolicyKind::consumer) return;
  for (BackingPlace& backing : layout.backings) {
    const auto readers = readers_by_node(backing, rank_nodes, "storage.policy consumer");
    if (readers.size() > 1) {
      fail(Exit::failure,
           "storage.policy consumer: the readers of shard {} are on several NUMA nodes: {}; set device.rank_map to "
           "shard-near or to a list that brings them together, or use storage.copies per-numa-node",
           layout.ranks[static_cast<std::size_t>(backing.leader)].shard.index, ranks_by_node(readers));
    }
    backing.node = readers.begin()->first;
  }
}

Policy policy_of(const StorageSpec& storage, const BackingPlace& backing) {
  if (backing.node < 0) return storage.policy;
  Policy policy;
  policy.kind = PolicyKind::bind;
  policy.nodes = {backing.node};
  policy.text = fmt::format("bind:{}", backing.node);
  return policy;
}

RunLayout make_layout(const Scenario& scenario, const engram::Geometry& geometry) {
  const ParallelSpec& parallel = scenario.parallel;
  if (parallel.dp % parallel.ep != 0) {
    fail(Exit::usage, "parallel.ep {} does not divide parallel.dp {}", parallel.ep, parallel.dp);
  }
  RunLayout layout;
  layout.edp_group_size = group_size(parallel);
  const bool dp_sharded = parallel.table_mode == TableMode::dp_sharded;
  const int shards = dp_sharded ? parallel.tp * layout.edp_group_size : parallel.tp;
  std::map<std::pair<int, int>, int> backing_of;
  for (int rank = 0; rank < scenario.ranks(); ++rank) {
    RankPlace place;
    place.rank = rank;
    place.replica = rank / parallel.tp;
    place.tp_rank = rank % parallel.tp;
    place.edp_rank = place.replica % layout.edp_group_size;
    const int index = dp_sharded ? place.tp_rank * layout.edp_group_size + place.edp_rank : place.tp_rank;
    place.shard = engram::make_shard(geometry, shards, index);
    // hbm: each device has its own copy, whatever the mode.
    const std::pair<int, int> key = scenario.storage.backing == Backing::hbm
                                        ? std::pair(rank, 0)
                                        : backing_key(place, parallel.table_mode, layout.edp_group_size);
    const auto [entry, fresh] = backing_of.try_emplace(key, static_cast<int>(layout.backings.size()));
    place.backing = entry->second;
    place.backing_leader = fresh;
    if (fresh) {
      BackingPlace backing;
      backing.index = place.backing;
      backing.leader = rank;
      backing.bytes = make_backing_layout(geometry, place.shard, scenario.storage).bytes;
      layout.backings.push_back(backing);
    }
    layout.backings[static_cast<std::size_t>(place.backing)].readers.push_back(rank);
    layout.ranks.push_back(place);
  }
  for (int replica = 0; replica < parallel.dp; ++replica) {
    std::vector<int> group;
    for (int t = 0; t < parallel.tp; ++t) group.push_back(replica * parallel.tp + t);
    layout.tp_groups.push_back(group);
  }
  layout.edp_groups = engram::edp_groups(scenario.ranks(), parallel.tp, layout.edp_group_size);
  if (parallel.ep > 1) layout.ep_groups = engram::edp_groups(scenario.ranks(), parallel.tp, parallel.ep);
  return layout;
}

std::int64_t unit_bytes(Backing backing) noexcept {
  if (backing == Backing::hugetlb_1g) return std::int64_t{1} << 30;
  if (backing == Backing::hugetlb_2m || is_thp(backing)) return std::int64_t{2} << 20;
  return static_cast<std::int64_t>(page_bytes());
}

bool is_hugetlb(Backing backing) noexcept { return backing == Backing::hugetlb_2m || backing == Backing::hugetlb_1g; }

bool is_thp(Backing backing) noexcept { return backing == Backing::shm_thp || backing == Backing::anon_thp; }

BackingLayout make_backing_layout(const engram::Geometry& geometry, const engram::Shard& shard, Layout layout,
                                  const LayoutRounding& rounding) {
  BackingLayout backing;
  const std::int64_t weights = geometry.row_weight_bytes();
  const std::int64_t scales = geometry.row_scale_bytes();
  // Of one array: up to the page where the next may start.
  const auto array_bytes = [&](std::int64_t bytes) {
    if (bytes == 0 || rounding.pinned == PinnedRounding::none) return to_page(bytes);
    return to_page(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes))));
  };
  for (const engram::RowRange& rows : shard.rows) {
    TablePlace place;
    place.weights_offset = backing.bytes;
    if (layout == Layout::interleaved) {
      place.weight_stride = geometry.row_stride(layout);
      place.scale_stride = place.weight_stride;
      place.scales_offset = place.weights_offset + weights;
      place.bytes = array_bytes(rows.count * place.weight_stride);
    } else {
      place.weight_stride = weights;
      place.scale_stride = scales;
      place.scales_offset = place.weights_offset + array_bytes(rows.count * weights);
      place.bytes = array_bytes(rows.count * weights) + array_bytes(rows.count * scales);
    }
    backing.bytes += place.bytes;
    backing.layers.push_back(place);
  }
  if (rounding.unit_bytes > 0 && !backing.layers.empty()) {
    const std::int64_t rest = (rounding.unit_bytes - backing.bytes % rounding.unit_bytes) % rounding.unit_bytes;
    backing.layers.back().bytes += rest;
    backing.bytes += rest;
  }
  return backing;
}

BackingLayout make_backing_layout(const engram::Geometry& geometry, const engram::Shard& shard,
                                  const StorageSpec& storage) {
  return make_backing_layout(geometry, shard, storage.layout, {unit_bytes(storage.backing), storage.pinned_rounding});
}

engram::LedgerInput ledger_input(const Scenario& scenario, const RunLayout& layout) {
  engram::LedgerInput input;
  input.tp = scenario.parallel.tp;
  input.dp = scenario.parallel.dp;
  input.edp_group = layout.edp_group_size;
  input.table_mode = scenario.parallel.table_mode;
  input.layout = scenario.storage.layout;
  input.round_pinned_to_power_of_two = scenario.storage.pinned_rounding == PinnedRounding::power_of_two;
  input.max_tokens = scenario.workload.max_tokens(scenario.parallel.dp);
  if (scenario.storage.copies == Copies::per_numa_node) {
    // Backings are numbered group by group, and shard by shard in a group: so are these counts.
    std::map<std::pair<int, int>, int> copies;
    for (const BackingPlace& backing : layout.backings) {
      const RankPlace& leader = layout.ranks[static_cast<std::size_t>(backing.leader)];
      ++copies[{leader.replica / layout.edp_group_size, leader.shard.index}];
    }
    for (const auto& [shard, count] : copies) input.copies_per_shard.push_back(count);
  }
  return input;
}

}  // namespace eb::plan
