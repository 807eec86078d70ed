#include "harness/rank/tables/row_locality.h"

#include <map>
#include <vector>

#include "collectors/page_map.h"
#include "harness/base/os.h"

namespace eb::rank {

RowLocality count_locality(const engram::Geometry& geometry, const engram::Shard& shard,
                           const plan::BackingLayout& places, std::span<const std::int32_t> ids, int table,
                           const std::byte* tables, int node) {
  const auto place = static_cast<std::size_t>(table);
  const plan::TablePlace& at = places.layers[place];
  const engram::RowRange range = shard.rows[place];
  const std::size_t id_row = geometry.layers.size() * static_cast<std::size_t>(geometry.columns);
  const std::size_t first =
      place * static_cast<std::size_t>(geometry.columns) + static_cast<std::size_t>(shard.first_column);
  const auto page = static_cast<std::int64_t>(page_bytes());
  std::map<std::int64_t, std::int64_t> rows_of_page;
  for (std::size_t token = 0; token + id_row <= ids.size(); token += id_row) {
    for (std::size_t column = 0; column < static_cast<std::size_t>(shard.columns); ++column) {
      const std::int64_t row = ids[token + first + column] - range.first;
      if (row >= 0 && row < range.count) ++rows_of_page[(at.weights_offset + row * at.weight_stride) / page];
    }
  }
  std::vector<const std::byte*> addresses;
  addresses.reserve(rows_of_page.size());
  for (const auto& [number, rows] : rows_of_page) addresses.push_back(tables + number * page);
  const std::vector<int> status = collectors::page_status(addresses);
  RowLocality out;
  std::size_t i = 0;
  for (const auto& [number, rows] : rows_of_page) {
    const int found = status[i++];
    if (found < 0) {
      out.unlocated_rows += rows;
      continue;
    }
    out.located_rows += rows;
    if (found == node) out.local_rows += rows;
  }
  return out;
}

}  // namespace eb::rank
