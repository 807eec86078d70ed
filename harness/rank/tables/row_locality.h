// Of the rows that a lookup read, those whose page lies on the rank's own NUMA node: ids joined with the page map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "harness/engram/geometry.h"
#include "harness/engram/shards.h"
#include "harness/plan/layout.h"

namespace eb::rank {

// A row lies where the page of its first weight byte lies; its scales are not looked at. A row that was read twice
// counts twice.
struct RowLocality {
  std::int64_t located_rows = 0;    // whose page has a node
  std::int64_t local_rows = 0;      // of these, on `node`
  std::int64_t unlocated_rows = 0;  // whose page could not be asked, or is in no page table of this process
};

// `places`: where the backing has its arrays. `ids`: [tokens][tables][columns], what the lookup of `table` read.
// `tables`: where this process has the backing mapped. Asks move_pages of each page once; touches none. Errors:
// Error(failure) where the call is refused.
[[nodiscard]] RowLocality count_locality(const engram::Geometry& geometry, const engram::Shard& shard,
                                         const plan::BackingLayout& places, std::span<const std::int32_t> ids,
                                         int table, const std::byte* tables, int node);

}  // namespace eb::rank
