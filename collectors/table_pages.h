// Pages of one backing out of several page tables, each of which knows only its own process's pages. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace eb::collectors {

// A part of a backing that one process maps, with the pages of it that are in that process's page table.
struct LivePiece {
  std::uint64_t begin = 0;  // offsets in the backing
  std::uint64_t end = 0;
  std::map<int, std::int64_t> node_bytes;
  std::int64_t page_bytes = 0;  // 0: not known
  std::optional<std::int64_t> pss_bytes;
  [[nodiscard]] std::int64_t present_bytes() const noexcept;
};

// Pieces of one process without those that show the same part again: of two that overlap the one with more pages stays,
// and gets the other's PSS (the kernel divides a page by all its mappings, also by two of one process). By offset.
[[nodiscard]] std::vector<LivePiece> each_part_once(std::vector<LivePiece> pieces);

struct TablePages {
  std::int64_t bytes = 0;                  // of the parts that any reader maps, each once
  std::map<int, std::int64_t> node_bytes;  // of the pages counted
  std::int64_t page_bytes = 0;             // the smallest; 0: no page table could be read
  std::vector<std::size_t> readers;        // whose page tables were counted, by index
  // Pages that are in readers' page tables and were not counted: more than one of them has pages that the others lack,
  // and numa_maps, which adds up, does not say which. Empty: not known (no PSS).
  std::optional<std::int64_t> uncounted_bytes = 0;
  [[nodiscard]] std::int64_t present_bytes() const noexcept;
};

// `readers`: of each its pieces, as each_part_once() leaves them. Part by part: the pages of the reader that has all of
// them, which PSS tells; the sum, where no page is in two readers' tables; else those of the reader that has most.
[[nodiscard]] TablePages count_pages(const std::vector<std::vector<LivePiece>>& readers);

}  // namespace eb::collectors
