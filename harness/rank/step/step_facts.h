// What a slot did, in figures: rows and their reuse, collectives, checks, as the JSON text of SlotResult::facts_json
// (docs/results.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "harness/engram/geometry.h"
#include "harness/engram/shards.h"
#include "harness/rank/step/step_check.h"
#include "harness/rank/step/step_program.h"
#include "harness/rank/step/step_shape.h"
#include "harness/rank/tables/row_locality.h"

namespace eb::rank {

// How much one lookup's ids repeat. Bytes between the table and the device are another matter: caches and transactions
// decide them; these are counts of distinct places.
struct Reuse {
  std::int64_t rows = 0;  // ids of the shard, DEAD_ID and padded heads left out
  std::int64_t unique_rows = 0;
  std::int64_t unique_pages = 0;    // of 4 KiB, weights and scales together
  std::int64_t unique_sectors = 0;  // of 32 B
  // Of all the slot's steps. None: the slot is not timed, no table in host memory, no device node, or move_pages is
  // refused.
  std::optional<RowLocality> locality;
};
// `ids`: [tokens][tables][columns], what the lookup of `table` read.
[[nodiscard]] Reuse count_reuse(const engram::Geometry& geometry, const engram::Shard& shard, plan::Layout layout,
                                std::span<const std::int32_t> ids, int table);

// What a slot cost the host.
struct HostWork {
  std::int64_t enqueue_ns = 0;  // its time inside the steps' calls, waits for earlier steps left out
  std::int64_t wall_ns = 0;     // from the first step's first call until everything was done
  std::optional<std::int64_t> launches;
  std::map<int, std::int64_t> lookup_units;  // by layer: distinct SMs of the last lookup, where somebody looked
};

// Windows of the lookup alone, or of the bare gather.
struct WindowFacts {
  bool reads = true;  // false: an idle rank
  bool bare = false;
  std::int64_t launches = 0;       // of each table in a window
  std::int64_t short_windows = 0;  // timed, and below 200 us
};

struct SlotTotals {
  std::int64_t steps = 0;
  std::int64_t own_tokens = 0;
  std::int64_t slot_tokens = 0;
  std::int64_t group_tokens = 0;  // real tokens of all lookups: of every replica of the EDP group
  std::int64_t grid_cap = 0;
  int threads = 0;
  bool instrument = true;
  HostWork host;
};

// `resources`: of each table's largest lookup. `window`: null for steps of a model.
[[nodiscard]] std::string facts_json(const StepShape& shape, const engram::Geometry& geometry, const SlotTotals& totals,
                                     const StepCounts& counts, std::span<const Reuse> reuse,
                                     std::span<const std::optional<backend::LookupResources>> resources,
                                     const backend::DeviceInfo& device, const std::optional<CheckFacts>& checks,
                                     const WindowFacts* window = nullptr);

}  // namespace eb::rank
