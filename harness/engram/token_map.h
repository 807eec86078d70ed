// Raw token id -> compressed id. The compressed vocabulary is the geometry's, never the map's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/engram/geometry.h"

namespace eb::engram {

class TokenMap {
 public:
  // identity: a raw id is its compressed id.
  static TokenMap identity(const Model& model);
  // map[raw] = compressed. Errors: Error(usage) for an id at or above model.compressed_vocab, naming the raw id.
  static TokenMap from_table(const Model& model, std::vector<std::int32_t> map);

  // Compressed id; kDeadToken stays. Errors: Error(usage) "token id N at position P is out of the vocabulary (0..M)".
  [[nodiscard]] std::vector<std::int32_t> compress(std::span<const std::int32_t> raw) const;
  [[nodiscard]] std::int32_t pad_compressed() const noexcept { return pad_; }
  [[nodiscard]] std::int64_t raw_vocab() const noexcept { return raw_vocab_; }

 private:
  std::vector<std::int32_t> map_;  // empty: identity
  std::int64_t raw_vocab_ = 0;
  std::int64_t compressed_vocab_ = 0;
  std::int32_t pad_ = 0;
};

}  // namespace eb::engram
