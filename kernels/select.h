// Select kernel: brings what an all-gather delivered (rank-major) into token-major order, cut to a token window.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eb::kernels {

// dst[t] = concat over s of src[s * source_stride + (first_token + t) * token_stride .. + piece_bytes], cut to
// dst_row_bytes. Tokens t in [valid_tokens, tokens) are zero rows (padding of the last window). All sizes in bytes,
// multiples of 2. Pieces that together are shorter than a row leave zeros behind them. src and dst do not overlap.
// Uses: heads of TP ranks side by side; own tokens out of a DP row exchange; the SP window of a rank; wkv's output
// columns.
struct SelectArgs {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  int sources = 1;
  std::int64_t source_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t piece_bytes = 0;
  std::int64_t first_token = 0;
  std::int64_t valid_tokens = 0;
  std::int64_t tokens = 0;
  std::int64_t dst_row_bytes = 0;
};

void select_rows(const SelectArgs& args);

}  // namespace eb::kernels
