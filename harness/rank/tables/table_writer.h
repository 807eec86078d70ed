// Writes a shard's tables into their mapping: synthetic rows at memory speed, or a checkpoint's by row ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "harness/engram/geometry.h"
#include "harness/engram/shards.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"

namespace eb::rank {

// Where consecutive rows go. Strides are at least the bytes of a row's part; bytes between are not touched here.
struct RowTarget {
  std::byte* weights = nullptr;
  std::int64_t weight_stride = 0;
  std::byte* scales = nullptr;
  std::int64_t scale_stride = 0;
};

// Thread-safe.
class TableSource {
 public:
  virtual ~TableSource() = default;
  // Rows [first, first + count) of the whole table of entry `layer_index` of Geometry::layers.
  virtual void fill(std::size_t layer_index, std::int64_t first, std::int64_t count, const RowTarget& target) const = 0;
};

// Same bytes as engram::synthetic_row, several bytes at a time. `geometry` must outlive it.
[[nodiscard]] std::unique_ptr<TableSource> make_synthetic_source(const engram::Geometry& geometry, std::uint64_t seed);
// Errors: as Checkpoint.
[[nodiscard]] std::unique_ptr<TableSource> make_checkpoint_source(const engram::Geometry& geometry,
                                                                  const std::string& folder);
[[nodiscard]] std::unique_ptr<TableSource> make_table_source(const plan::Scenario& scenario,
                                                             const engram::Geometry& geometry);

// Called by any of the writing threads after each piece; what it throws ends the load.
using LoadProgress = std::function<void()>;

// Writes every byte of [memory, memory + layout.bytes): rows, pad bytes of interleaved rows and the rest of the pages
// (0). A page that was pre-touched with other content is overwritten whole. `threads` >= 1. Errors: the source's.
void write_tables(const TableSource& source, const engram::Geometry& geometry, const engram::Shard& shard,
                  plan::Layout layout, const plan::BackingLayout& places, std::byte* memory, int threads,
                  const LoadProgress& progress);

}  // namespace eb::rank
