// Who is who in a run: ranks, replicas, TP/EDP/EP groups, shards and backings, derived from a scenario. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "harness/engram/shards.h"
#include "harness/plan/scenario.h"

namespace eb::plan {

// Ranks are numbered replica-major: rank = replica * tp + tp_rank. One host.
struct RankPlace {
  int rank = 0;
  int replica = 0;  // dp
  int tp_rank = 0;
  int edp_rank = 0;             // place in its EDP group
  int backing = 0;              // index into RunLayout::backings
  bool backing_leader = false;  // creates, sets the policy, pre-touches and loads
  engram::Shard shard;
};

struct BackingPlace {  // one allocation: a copy of the shard's tables of all layers, shared by `readers`
  int index = 0;
  int leader = 0;            // rank
  std::vector<int> readers;  // ranks, ascending; private backings have one
  std::int64_t bytes = 0;
  int node = -1;  // the NUMA node that place_backings() binds it to; -1: storage.policy says where
};

struct RunLayout {
  int edp_group_size = 1;
  std::vector<RankPlace> ranks;
  std::vector<BackingPlace> backings;
  std::vector<std::vector<int>> tp_groups;   // of each replica
  std::vector<std::vector<int>> edp_groups;  // same TP rank over the group's replicas
  std::vector<std::vector<int>> ep_groups;   // empty where ep == 1: `ep` consecutive ranks of... see make_layout
};

// Errors: Error(usage) for what the scenario cannot be: shards without columns, shared or dp_sharded without EDP peers,
// ep that does not divide dp. EP groups: same TP rank, `ep` consecutive replicas.
[[nodiscard]] RunLayout make_layout(const Scenario& scenario, const engram::Geometry& geometry);

// What the devices' nodes decide. `rank_nodes`: the NUMA node of each rank's device, -1 where the system states none.
// copies per-numa-node: a backing becomes one for each node with a reader, with that node's readers and the first of
// them as leader; shards, head ranges and groups stay. policy consumer: each backing gets the node of all its readers.
// Else nothing changes. Errors: Error(failure) where a node is not known, and for consumer where readers of one shard
// are on several nodes.
void place_backings(RunLayout& layout, const StorageSpec& storage, std::span<const int> rank_nodes);

// storage.policy, or bind to the backing's own node.
[[nodiscard]] Policy policy_of(const StorageSpec& storage, const BackingPlace& backing);

// Where the tables of each layer lie in a shard's backing. Split: layer after layer, weights then scales; each array
// starts on a page. Interleaved: one array a layer.
struct TablePlace {
  std::int64_t weights_offset = 0;
  std::int64_t scales_offset = 0;
  std::int64_t weight_stride = 0;
  std::int64_t scale_stride = 0;
  std::int64_t bytes = 0;  // from weights_offset to the end of this layer's last array, padding to a page included
};
struct BackingLayout {
  std::vector<TablePlace> layers;
  std::int64_t bytes = 0;
};

// The page size that a backing is made of, and its size a multiple of: 2 MiB for hugetlb-2m, shm-thp and anon-thp, 1
// GiB for hugetlb-1g, else the system's page.
[[nodiscard]] std::int64_t unit_bytes(Backing backing) noexcept;
// hugetlb-2m or hugetlb-1g: pages from a pool.
[[nodiscard]] bool is_hugetlb(Backing backing) noexcept;
// shm-thp or anon-thp: huge pages where the kernel makes them.
[[nodiscard]] bool is_thp(Backing backing) noexcept;

// What a layout rounds up to. `unit_bytes`: of the whole backing, a multiple of the page size (0: the page); the last
// layer's `bytes` reach to that end. `pinned`: of each array.
struct LayoutRounding {
  std::int64_t unit_bytes = 0;
  PinnedRounding pinned = PinnedRounding::none;
};
[[nodiscard]] BackingLayout make_backing_layout(const engram::Geometry& geometry, const engram::Shard& shard,
                                                Layout layout, const LayoutRounding& rounding = {});
// As the storage of a scenario has it.
[[nodiscard]] BackingLayout make_backing_layout(const engram::Geometry& geometry, const engram::Shard& shard,
                                                const StorageSpec& storage);

}  // namespace eb::plan
