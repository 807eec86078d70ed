#include "harness/engram/ledger.h"

#include <bit>

#include "harness/base/error.h"
#include "harness/engram/shards.h"

namespace eb::engram {

namespace {

std::int64_t power_of_two(std::int64_t bytes) noexcept {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
}

// Bytes that one backing of a shard takes: its tables, or, from a caching allocator, each of its arrays rounded up
// alone.
std::int64_t allocated_bytes(const Geometry& geometry, const Shard& shard, const LedgerInput& input) {
  if (!input.round_pinned_to_power_of_two) return shard.table_bytes(geometry, input.layout);
  std::int64_t total = 0;
  for (const RowRange& range : shard.rows) {
    if (input.layout == Layout::interleaved) {
      total += power_of_two(range.count * geometry.row_stride(input.layout));
    } else {
      total += power_of_two(range.count * geometry.row_weight_bytes());
      if (geometry.row_scale_bytes() > 0) total += power_of_two(range.count * geometry.row_scale_bytes());
    }
  }
  return total;
}

}  // namespace

Ledger make_ledger(const Geometry& geometry, const LedgerInput& input) {
  if (input.tp < 1 || input.dp < 1)
    fail(Exit::usage, "tp is {} and dp is {}: both must be 1 or more", input.tp, input.dp);
  if (input.max_tokens < 0) fail(Exit::usage, "max tokens of a step is {}, must be 0 or more", input.max_tokens);
  const bool private_tables = input.table_mode == TableMode::private_;
  const int members = private_tables ? 1 : input.edp_group;  // replicas that one set of backings serves
  if (members < 1 || input.dp % members != 0) {
    fail(Exit::usage, "{} replicas are no whole number of EDP groups of {}", input.dp, members);
  }
  const bool split_over_group = input.table_mode == TableMode::dp_sharded;
  const int shards = input.tp * (split_over_group ? members : 1);
  const int sets = input.dp / members;
  const auto& copies = input.copies_per_shard;
  if (!copies.empty()) {
    if (input.table_mode != TableMode::shared) {
      fail(Exit::usage, "copies for each NUMA node are of a shared table: the table mode must be shared");
    }
    if (copies.size() != static_cast<std::size_t>(shards) &&
        copies.size() != static_cast<std::size_t>(shards) * static_cast<std::size_t>(sets)) {
      fail(Exit::usage, "copies are given for {} shards, there are {} in {} sets", copies.size(), shards, sets);
    }
  }

  Ledger ledger;
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    ledger.table_bytes_one_copy += geometry.table_bytes(i, input.layout);
  }
  std::size_t place = 0;
  for (int set = 0; set < sets; ++set) {
    for (int index = 0; index < shards; ++index, ++place) {
      const Shard shard = make_shard(geometry, shards, index);
      const int count = copies.empty() ? 1 : copies[place % copies.size()];
      if (count < 1) fail(Exit::usage, "shard {} has {} copies: every shard has a reader", index, count);
      for (int copy = 0; copy < count; ++copy) ledger.backing_bytes.push_back(allocated_bytes(geometry, shard, input));
    }
  }
  for (const std::int64_t bytes : ledger.backing_bytes) ledger.table_bytes += bytes;

  const std::int64_t part = make_shard(geometry, shards, 0).part;  // local heads with padding
  const std::int64_t slot_tokens = input.max_tokens * (split_over_group ? members : 1);
  ledger.staging_bytes_per_rank =
      static_cast<std::int64_t>(geometry.layers.size()) * slot_tokens * part * geometry.model.dim * 2;
  const std::int64_t heads = geometry.columns;
  ledger.source_bytes_per_token = heads * (geometry.row_weight_bytes() + geometry.row_scale_bytes());
  ledger.staging_traffic_per_token = heads * 2 * geometry.model.dim;
  return ledger;
}

}  // namespace eb::engram
