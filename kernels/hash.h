// Hash kernel: tokens -> row ids. CPU and CUDA twins share these arguments.
#pragma once

#include <cstdint>

namespace eb::kernels {

inline constexpr int kMaxColumns = 64;
inline constexpr int kLookBack = 3;  // slots before each segment of `context`

struct HashLayer {
  std::int64_t multipliers[kLookBack + 1];
  std::int64_t primes[kMaxColumns];
  std::int64_t offsets[kMaxColumns];
};

// `context`: for each request's chunk in the batch, kLookBack look-back tokens, then the chunk's tokens; compressed
// ids, -1 = dead or before the request's start. `position[t]` = index of token t in `context` (>= kLookBack). Column c
// of a layer belongs to n-gram size `column_ngram[c]`, 2..kLookBack + 1. Ids times multipliers stay below 2^63 (how
// multipliers are drawn); primes fit 32 bits. Writes ids[tokens][layers][columns].
struct HashArgs {
  const std::int32_t* context = nullptr;
  const std::int32_t* position = nullptr;
  std::int64_t tokens = 0;
  const HashLayer* layers = nullptr;
  int layer_count = 0;
  int columns = 0;
  std::int32_t column_ngram[kMaxColumns] = {};  // ascending
  std::int32_t pad_id = 0;                      // compressed
  std::int32_t* ids = nullptr;
};

// Tokens [first, last).
void hash_tokens(const HashArgs& args, std::int64_t first, std::int64_t last);

}  // namespace eb::kernels
