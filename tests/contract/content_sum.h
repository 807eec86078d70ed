// What a mapping holds, as one text: two are equal where all their bytes are. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "harness/base/error.h"
#include "harness/base/sha256.h"

namespace eb::contract {

// The zeros at the end, most of a huge page behind a small table, are counted instead of hashed: a page of 1 GiB would
// take longer than the test around it.
inline std::string content_sum(std::span<const std::byte> memory) {
  constexpr std::size_t kBlock = 4096;
  static constexpr std::byte kZeros[kBlock] = {};
  std::size_t end = memory.size();
  while (end > 0) {
    const std::size_t bytes = std::min(kBlock, end);
    if (std::memcmp(memory.data() + end - bytes, kZeros, bytes) != 0) break;
    end -= bytes;
  }
  return fmt::format("{} and {} zeros", sha256_hex(memory.first(end)), memory.size() - end);
}

}  // namespace eb::contract
