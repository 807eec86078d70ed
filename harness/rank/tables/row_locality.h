// Of the rows that lookups read, those whose page lies on the rank's own NUMA node: ids joined with the page map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/engram/shards.h"
#include "harness/plan/layout.h"

namespace eb::rank {

// A row lies where the page of its first weight byte lies; its scales are not looked at. A row that was read twice
// counts twice.
struct RowLocality {
  std::int64_t located_rows = 0;    // whose page has a node
  std::int64_t local_rows = 0;      // of these, on the device's node
  std::int64_t unlocated_rows = 0;  // whose page could not be asked, or is in no page table of this process
};

// Counts step by step. A page is asked (move_pages) once, when a row of it first comes up; one without an answer is
// asked again. So a page that moves later counts where it lay: the snapshots before and after the steps show a move.
class LocalityCounter {
 public:
  // `places`: where the backing has its arrays; `tables`: where this process has it mapped; `node`: its device's.
  // `geometry` must outlive the counter.
  LocalityCounter(const engram::Geometry& geometry, const engram::Shard& shard, plan::BackingLayout places,
                  const std::byte* tables, int node);

  // `ids`: [tokens][tables][columns], what the lookups of one step read; DEAD_ID and other shards' rows are left out.
  // Touches no page. Errors: Error(failure) where the call is refused.
  void add(std::span<const std::int32_t> ids);
  // By table, since the last call.
  [[nodiscard]] std::vector<RowLocality> take();

 private:
  void collect(std::span<const std::int32_t> ids, std::size_t table);
  void ask_unknown();

  const engram::Geometry& geometry_;
  engram::Shard shard_;
  plan::BackingLayout places_;
  const std::byte* tables_;
  int node_;
  std::vector<std::int16_t> node_of_page_;  // kUnknown: not asked, or no answer yet
  std::vector<std::size_t> pages_;          // of the rows of one table and step, one entry a row
  std::vector<RowLocality> counts_;
};

}  // namespace eb::rank
