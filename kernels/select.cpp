#include "kernels/select.h"

#include <algorithm>
#include <cstring>

namespace eb::kernels {

void select_rows(const SelectArgs& args) {
  const auto row_bytes = static_cast<std::size_t>(args.dst_row_bytes);
  const std::int64_t valid = std::clamp<std::int64_t>(args.valid_tokens, 0, args.tokens);
  const std::byte* src = args.src + args.first_token * args.token_stride;

  // One source without gaps: the window is one piece of memory.
  if (args.sources == 1 && args.piece_bytes == args.dst_row_bytes && args.token_stride == args.dst_row_bytes) {
    std::memcpy(args.dst, src, static_cast<std::size_t>(valid) * row_bytes);
  } else {
    for (std::int64_t token = 0; token < valid; ++token) {
      std::byte* dst = args.dst + token * args.dst_row_bytes;
      const std::byte* piece = src + token * args.token_stride;
      std::int64_t at = 0;
      for (int source = 0; source < args.sources && at < args.dst_row_bytes; ++source) {
        const std::int64_t bytes = std::min(args.piece_bytes, args.dst_row_bytes - at);
        std::memcpy(dst + at, piece, static_cast<std::size_t>(bytes));
        piece += args.source_stride;
        at += bytes;
      }
      // Pieces that do not fill the row leave zeros, not what the buffer held before.
      std::memset(dst + at, 0, static_cast<std::size_t>(args.dst_row_bytes - at));
    }
  }
  std::memset(args.dst + valid * args.dst_row_bytes, 0, static_cast<std::size_t>(args.tokens - valid) * row_bytes);
}

}  // namespace eb::kernels
