#include "harness/engram/token_map.h"

#include <utility>

#include "harness/base/error.h"

namespace eb::engram {

TokenMap TokenMap::identity(const Model& model) {
  TokenMap map;
  map.raw_vocab_ = model.raw_vocab;
  map.compressed_vocab_ = model.compressed_vocab;
  map.pad_ = model.pad_token;
  if (model.pad_token < 0 || model.pad_token >= model.compressed_vocab) {
    fail(Exit::usage, "token map identity: pad token {} is no id below the compressed vocabulary {}", model.pad_token,
         model.compressed_vocab);
  }
  return map;
}

TokenMap TokenMap::from_table(const Model& model, std::vector<std::int32_t> map) {
  if (static_cast<std::int64_t>(map.size()) != model.raw_vocab) {
    fail(Exit::usage, "token map has {} entries, the model's raw vocabulary has {}", map.size(), model.raw_vocab);
  }
  for (std::size_t raw = 0; raw < map.size(); ++raw) {
    if (map[raw] < 0 || map[raw] >= model.compressed_vocab) {
      fail(Exit::usage, "token map: raw id {} maps to {}, at or above the model's compressed vocabulary {}", raw,
           static_cast<std::uint32_t>(map[raw]), model.compressed_vocab);
    }
  }
  if (model.pad_token < 0 || model.pad_token >= model.raw_vocab) {
    fail(Exit::usage, "pad token {} is no raw token id (0..{})", model.pad_token, model.raw_vocab - 1);
  }
  TokenMap result;
  result.raw_vocab_ = model.raw_vocab;
  result.compressed_vocab_ = model.compressed_vocab;
  result.pad_ = map[static_cast<std::size_t>(model.pad_token)];
  result.map_ = std::move(map);
  return result;
}

std::vector<std::int32_t> TokenMap::compress(std::span<const std::int32_t> raw) const {
  std::vector<std::int32_t> out(raw.size());
  for (std::size_t position = 0; position < raw.size(); ++position) {
    const std::int32_t token = raw[position];
    if (token == kDeadToken) {
      out[position] = kDeadToken;
      continue;
    }
    if (token < 0 || token >= raw_vocab_) {
      fail(Exit::usage, "token id {} at position {} is out of the vocabulary (0..{})", token, position, raw_vocab_ - 1);
    }
    if (map_.empty()) {
      if (token >= compressed_vocab_) {
        fail(
            Exit::usage,
            "token id {} at position {} maps to itself (token map identity), at or above the compressed vocabulary {}: "
            "give the tokenizer's map",
            token, position, compressed_vocab_);
      }
      out[position] = token;
    } else {
      out[position] = map_[static_cast<std::size_t>(token)];
    }
  }
  return out;
}

}  // namespace eb::engram
