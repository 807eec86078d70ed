// What one rank sees of its tables at one moment of their life: where the pages lie, who else holds them, under which
// policy. As JSON (docs/collectors.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectors/page_map.h"

namespace eb::collectors {

struct TableRange {  // one layer's table inside the mapping
  int layer = 0;
  std::uint64_t offset = 0;  // from the mapping's start, bytes
  std::uint64_t bytes = 0;
};

// What a driver allocated: such memory has no object whose blocks could be asked for, so the record of the allocation
// stands for it.
struct AllocationRecord {
  std::uint64_t identity = 0;  // equal for all readers of one backing
  struct Piece {
    int node = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Piece> pieces;
};

struct SnapshotInput {
  std::string label;  // after_map, after_pretouch, after_register, after_load, steady
  const std::byte* address = nullptr;
  std::size_t bytes = 0;                         // 0: this rank has no tables in memory; `mapping` is null then
  int backing_fd = -1;                           // -1: private memory, or a driver's
  std::optional<AllocationRecord> allocation{};  // of a driver's memory
  std::string backing_kind;                      // "shm", "memfd", "anon": as in the scenario file
  std::vector<TableRange> tables;
  std::int64_t max_pages = kDefaultMaxPages;  // asked of move_pages a table; 0 = all
};

// Touches no page. A part that this machine or container does not give is {"value": null, "reason": "..."}; only a
// mapping that is not there at all is an error: Error(failure).
[[nodiscard]] std::string rank_snapshot_json(const SnapshotInput& input);

}  // namespace eb::collectors
