// Lookup kernel: row ids -> dequantised BF16 rows in staging. CPU and CUDA twins share these arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "harness/base/bf16.h"

namespace eb::kernels {

inline constexpr int kTileRows = 16;

enum class RowFormat { e4m3_ue8m0, bf16 };

// Value of an element: E4M3 value x the float32 with bits `scale byte << 23` (0 -> 0.0, 255 -> inf), rounded once to
// BF16, denormals kept. Every NaN (a NaN code; zero times an infinite scale) is stored as kBf16Nan.

// One layer's shard of a table as the device sees it. `weights` and `scales` point at the shard's row `first_row`.
// Split layout: stride = bytes of a row's part; interleaved: both strides = the row stride, scales = weights + weight
// bytes.
struct TableView {
  const std::byte* weights = nullptr;
  const std::byte* scales = nullptr;  // null for bf16 rows
  std::int64_t weight_stride = 0;
  std::int64_t scale_stride = 0;
  std::int64_t first_row = 0;  // global row id
  std::int64_t rows = 0;
  std::int32_t dim = 0;    // elements of a row, multiple of 16
  std::int32_t block = 0;  // elements that share a scale; 0 for bf16 rows
  RowFormat format = RowFormat::e4m3_ue8m0;
  bool in_device_memory = false;  // chooses the CUDA kernel's shape; no meaning on the CPU
};

// rows = tokens * heads, row r = (token r / heads, head r % heads). Its id is
//   ids[token * id_token_stride + id_offset + head]   for head < columns,
//   none (zero row)                                   for columns <= head < heads (padded heads).
// An id that is negative or outside the view's rows gives a zero row. `staging[r][dim]`.
// `order`: null, or a permutation of the rows; the kernel visits order[i] instead of i and still writes to that row's
// place.
struct LookupArgs {
  TableView table;
  const std::int32_t* ids = nullptr;
  std::int64_t id_token_stride = 0;
  std::int64_t id_offset = 0;
  std::int64_t tokens = 0;
  std::int32_t columns = 0;  // real heads of the shard
  std::int32_t heads = 0;    // with padding
  const std::int32_t* order = nullptr;
  Bf16* staging = nullptr;

  [[nodiscard]] std::int64_t rows() const noexcept { return tokens * heads; }
  [[nodiscard]] std::int64_t tiles() const noexcept { return (rows() + kTileRows - 1) / kTileRows; }
};

// Program `program` of a persistent grid of `grid` programs: tiles program, program + grid, ...
void lookup_program(const LookupArgs& args, std::int64_t program, std::int64_t grid);

// Fills `order[rows]` with the rows sorted by id (stable; rows without an id last): prefetch.order = table.
void sort_rows(const LookupArgs& args, std::int32_t* order);

}  // namespace eb::kernels
