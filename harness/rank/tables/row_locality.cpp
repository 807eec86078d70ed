#include "harness/rank/tables/row_locality.h"

#include <algorithm>
#include <utility>

#include "collectors/page_map.h"
#include "harness/base/os.h"

namespace eb::rank {

namespace {

constexpr std::int16_t kUnknown = -1;

}  // namespace

LocalityCounter::LocalityCounter(const engram::Geometry& geometry, const engram::Shard& shard,
                                 plan::BackingLayout places, const std::byte* tables, int node)
    : geometry_(geometry),
      shard_(shard),
      places_(std::move(places)),
      tables_(tables),
      node_(node),
      node_of_page_(static_cast<std::size_t>(places_.bytes) / page_bytes() + 1, kUnknown),
      counts_(geometry.layers.size()) {}

void LocalityCounter::add(std::span<const std::int32_t> ids) {
  for (std::size_t table = 0; table < counts_.size(); ++table) {
    collect(ids, table);
    ask_unknown();
    RowLocality& count = counts_[table];
    for (const std::size_t page : pages_) {
      const int found = node_of_page_[page];
      if (found == kUnknown) {
        ++count.unlocated_rows;
        continue;
      }
      ++count.located_rows;
      if (found == node_) ++count.local_rows;
    }
  }
}

void LocalityCounter::collect(std::span<const std::int32_t> ids, std::size_t table) {
  const plan::TablePlace& at = places_.layers[table];
  const engram::RowRange range = shard_.rows[table];
  const auto columns = static_cast<std::size_t>(geometry_.columns);
  const std::size_t id_row = counts_.size() * columns;
  const std::size_t first = table * columns + static_cast<std::size_t>(shard_.first_column);
  pages_.clear();
  for (std::size_t token = 0; token + id_row <= ids.size(); token += id_row) {
    for (std::size_t column = 0; column < static_cast<std::size_t>(shard_.columns); ++column) {
      const std::int64_t row = ids[token + first + column] - range.first;
      if (row < 0 || row >= range.count) continue;
      pages_.push_back(static_cast<std::size_t>(at.weights_offset + row * at.weight_stride) / page_bytes());
    }
  }
}

void LocalityCounter::ask_unknown() {
  std::vector<std::size_t> unknown;
  for (const std::size_t page : pages_) {
    if (node_of_page_[page] == kUnknown) unknown.push_back(page);
  }
  if (unknown.empty()) return;
  std::sort(unknown.begin(), unknown.end());
  unknown.erase(std::unique(unknown.begin(), unknown.end()), unknown.end());
  std::vector<const std::byte*> addresses;
  addresses.reserve(unknown.size());
  for (const std::size_t page : unknown) addresses.push_back(tables_ + page * page_bytes());
  const std::vector<int> status = collectors::page_status(addresses);
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    if (status[i] >= 0) node_of_page_[unknown[i]] = static_cast<std::int16_t>(status[i]);
  }
}

std::vector<RowLocality> LocalityCounter::take() {
  return std::exchange(counts_, std::vector<RowLocality>(counts_.size()));
}

}  // namespace eb::rank
