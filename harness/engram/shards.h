// How a table's hash columns are split over ranks, and which replicas may share one copy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engram/geometry.h"

namespace eb::engram {

struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Shard k of `shards`: columns [k*part, min((k+1)*part, columns)) and the rows of their bucket ranges.
struct Shard {
  int shards = 1;
  int index = 0;
  int first_column = 0;
  int columns = 0;             // real columns, >= 1
  int part = 0;                // columns with padding: ceil(columns of the model / shards); staging has `part` heads
  std::vector<RowRange> rows;  // per entry of Geometry::layers

  // Bytes of this shard's tables, all layers.
  [[nodiscard]] std::int64_t table_bytes(const Geometry& geometry, Layout layout) const noexcept;
};

// Errors: Error(usage) "Engram sharding leaves ranks without hash heads: 24 heads over 16 shards".
[[nodiscard]] Shard make_shard(const Geometry& geometry, int shards, int index);

// Replicas whose tables may be shared. `host_of_rank[r]` is the host of rank r; a replica is `replica_size` consecutive
// ranks (TP x PP). Returns 1 where sharing is not possible. Source of the rule: vLLM db9527a, engram.py.
[[nodiscard]] int edp_group_size(std::span<const int> host_of_rank, int dp, int replica_size);

// Members (rank numbers) of every group of `group_size` consecutive replicas: same TP rank. TP2 x DP2 on one host:
// {0,2}, {1,3}.
[[nodiscard]] std::vector<std::vector<int>> edp_groups(int ranks, int replica_size, int group_size);

}  // namespace eb::engram
