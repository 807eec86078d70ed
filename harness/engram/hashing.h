// Reference of the n-gram hash: plain, slow, the truth that kernels are compared with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engram/geometry.h"

namespace eb::engram {

// Row ids of one sequence or chunk. `tokens` are compressed ids, kDeadToken = dead. `history` is what came before the
// chunk in the same request (oldest first; only the last 3 matter; empty = the request's start).
// Returns ids[token][layer][column], row-major, int32.
// Errors: Error(usage) for an id at or above the compressed vocabulary.
[[nodiscard]] std::vector<std::int32_t> hash_ids(const Geometry& geometry, std::span<const std::int32_t> tokens,
                                                 std::span<const std::int32_t> history, std::int32_t pad_compressed);

}  // namespace eb::engram
