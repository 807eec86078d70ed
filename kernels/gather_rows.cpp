// The bare row gather on the CPU. Rows are resolved and prefetched as the lookup does it, so that both have the same
// number of requests on their way; what is left out is the work on the bytes.
#include "kernels/gather_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace eb::kernels {

static_assert(std::endian::native == std::endian::little);

namespace {

constexpr std::int64_t kLineBytes = 64;
// As the lookup: two tiles are prefetched while the two before them are read.
constexpr std::size_t kGroupRows = 2 * kTileRows;

struct Group {
  std::size_t rows = 0;
  std::array<const std::byte*, kGroupRows> weights;  // null: no row
  std::array<const std::byte*, kGroupRows> scales;
  std::array<std::uint32_t*, kGroupRows> out;
};

void resolve(const GatherArgs& args, std::int64_t tile, Group& group) {
  const LookupArgs& from = args.lookup;
  const TableView& table = from.table;
  const std::int64_t last = std::min(from.rows(), (tile + 1) * kTileRows);
  for (std::int64_t at = tile * kTileRows; at < last; ++at) {
    const std::int64_t row = from.order != nullptr ? from.order[at] : at;
    const std::int64_t token = row / from.heads;
    const std::int64_t head = row % from.heads;
    const std::size_t i = group.rows++;
    group.out[i] = args.sums + row;
    group.weights[i] = nullptr;
    if (head >= from.columns) continue;
    const std::int64_t id = from.ids[token * from.id_token_stride + from.id_offset + head];
    const std::int64_t local = id - table.first_row;
    if (id < 0 || local < 0 || local >= table.rows) continue;
    group.weights[i] = table.weights + local * table.weight_stride;
    group.scales[i] = table.scales + (table.scales == nullptr ? 0 : local * table.scale_stride);
  }
}

// Always inlined: GCC drops calls of a function that only prefetches.
[[gnu::always_inline]] inline void prefetch(const Group& group, std::int64_t weight_bytes,
                                            std::int64_t scale_bytes) noexcept {
  for (std::size_t i = 0; i < group.rows; ++i) {
    if (group.weights[i] == nullptr) continue;
    for (std::int64_t at = 0; at < weight_bytes; at += kLineBytes) __builtin_prefetch(group.weights[i] + at, 0, 3);
    if (scale_bytes > 0) __builtin_prefetch(group.scales[i], 0, 3);
  }
}

std::uint32_t fold(const std::byte* bytes, std::int64_t count) noexcept {
  std::uint64_t sum = 0;
  std::int64_t at = 0;
  for (; at + 8 <= count; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, 8);
    sum ^= word;
  }
  auto result = static_cast<std::uint32_t>(sum ^ (sum >> 32));
  for (; at < count; ++at) result ^= static_cast<std::uint32_t>(bytes[at]) << (8 * (at % 4));
  return result;
}

}  // namespace

void gather_rows_program(const GatherArgs& args, std::int64_t program, std::int64_t grid) {
  const std::int64_t weight_bytes = args.weight_bytes();
  const std::int64_t scale_bytes = args.scale_bytes();
  const std::int64_t tiles = args.lookup.tiles();
  std::array<Group, 2> groups;
  std::int64_t next = program;
  const auto fetch = [&](Group& group) {
    group.rows = 0;
    for (std::size_t t = 0; t < kGroupRows / kTileRows && next < tiles; ++t, next += grid) {
      resolve(args, next, group);
    }
    prefetch(group, weight_bytes, scale_bytes);
  };
  fetch(groups[0]);
  for (std::size_t now = 0; groups[now].rows > 0; now ^= 1) {
    fetch(groups[now ^ 1]);
    const Group& group = groups[now];
    for (std::size_t i = 0; i < group.rows; ++i) {
      *group.out[i] =
          group.weights[i] == nullptr ? 0 : fold(group.weights[i], weight_bytes) ^ fold(group.scales[i], scale_bytes);
    }
  }
}

}  // namespace eb::kernels
