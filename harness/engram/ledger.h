// Bytes that a configuration needs, computed before anything is allocated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engram/geometry.h"

namespace eb::engram {

enum class TableMode { shared, private_, dp_sharded };

struct LedgerInput {
  int tp = 1;
  int dp = 1;
  int edp_group = 1;  // replicas in a group that share (shared) or split (dp_sharded) the tables
  TableMode table_mode = TableMode::shared;
  Layout layout = Layout::split;
  std::int64_t max_tokens = 0;  // of a step of one replica
  // Per-numa-node copies (shared only): for each TP shard the number of NUMA nodes with a reader of it, of one EDP
  // group (the same for all) or of every group in turn; empty = one copy.
  std::vector<int> copies_per_shard = {};
  bool round_pinned_to_power_of_two = false;  // private pinned memory from a caching allocator
};

struct Ledger {
  std::int64_t table_bytes_one_copy = 0;       // W
  std::int64_t table_bytes = 0;                // physical bytes of all copies on the host
  std::vector<std::int64_t> backing_bytes;     // of every backing (one a shard and copy)
  std::int64_t staging_bytes_per_rank = 0;     // one buffer a layer, all layers, padded heads included
  std::int64_t source_bytes_per_token = 0;     // of one layer's lookup of all heads: H * (d + d/32)
  std::int64_t staging_traffic_per_token = 0;  // 2 * H * d: another path, never added to the source's
};

// Errors: Error(usage) for counts that do not fit each other, and as make_shard.
[[nodiscard]] Ledger make_ledger(const Geometry& geometry, const LedgerInput& input);

}  // namespace eb::engram
