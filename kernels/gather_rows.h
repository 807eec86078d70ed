// Bare row gather: reads the stored bytes of the rows that a lookup would read, and nothing else. No dequantisation, no
// staging: each row leaves one word, which keeps the read alive. Its rate is BW_effective, what a lookup's rate is set
// beside. CPU and CUDA twins share these arguments and give the same words.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/lookup.h"

namespace eb::kernels {

// sums[r] = XOR over the stored bytes of row r of `byte i << 8 * (i % 4)`, i counted anew in weights and in scales; 0
// for a row without an id (padded head, DEAD_ID, outside the shard). `lookup.staging` is not used.
struct GatherArgs {
  LookupArgs lookup;
  std::uint32_t* sums = nullptr;  // [lookup.rows()]

  [[nodiscard]] std::int64_t weight_bytes() const noexcept {
    return lookup.table.format == RowFormat::bf16 ? std::int64_t{lookup.table.dim} * 2 : lookup.table.dim;
  }
  [[nodiscard]] std::int64_t scale_bytes() const noexcept {
    if (lookup.table.format == RowFormat::bf16) return 0;
    return (lookup.table.dim + lookup.table.block - 1) / lookup.table.block;
  }
};

// Program `program` of a persistent grid of `grid` programs: the tiles that lookup_program takes.
void gather_rows_program(const GatherArgs& args, std::int64_t program, std::int64_t grid);

}  // namespace eb::kernels
