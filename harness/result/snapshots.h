// The collectors' snapshots of all ranks, brought together: each backing is counted once, from the process with the
// fullest page table.
#pragma once

#include <string>
#include <vector>

#include "harness/plan/layout.h"
#include "harness/result/json_value.h"
#include "harness/supervise/reroll.h"
#include "placement/topology.h"

namespace eb::result {

struct RankSnapshot {
  int rank = 0;
  Json json;
};

// Snapshots of one label, ascending ranks. Errors: Error(failure) for text that is not JSON.
[[nodiscard]] std::vector<RankSnapshot> parse_snapshots(const std::vector<supervise::SnapshotReport>& reports,
                                                        const std::string& label);

struct BackingTotals {   // numbers, or null with the reason
  Json pss_bytes;        // summed over all ranks' table mappings
  Json allocated_bytes;  // summed over the distinct backings; private memory: the resident bytes of each mapping
  int backings = 0;
};
[[nodiscard]] BackingTotals backing_totals(const std::vector<RankSnapshot>& ranks);

// One backing in one snapshot: policy, pages and shares by node (numa_maps), and per table what move_pages says.
[[nodiscard]] Json backing_pages(const plan::BackingPlace& backing, const std::vector<RankSnapshot>& ranks,
                                 const Json& requested_shares);

// How many of the pages that `backing` (of backing_pages()) is counted in the kernel places at once: 1, or 512 where
// transparent huge pages of `unit_bytes` are counted in pages of 4 KiB.
[[nodiscard]] std::int64_t granule_pages(const Json& backing, std::int64_t unit_bytes);

// What share of the pages each node should have; null with the reason where the policy promises none, or names a node
// that this machine lacks.
[[nodiscard]] Json requested_shares(const plan::Policy& wanted, const placement::Topology& topology);

// The same over all backings of an arm, by their bytes: a copy that is bound to its own node counts there.
[[nodiscard]] Json requested_shares(const plan::StorageSpec& storage, const plan::RunLayout& layout,
                                    const placement::Topology& topology);

// Pages by node of a table or mapping as shares of their sum; null with a reason where there is none.
[[nodiscard]] Json node_shares(const Json& node_pages);

}  // namespace eb::result
