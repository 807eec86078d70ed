#include "harness/engram/hashing.h"

#include "harness/base/error.h"

namespace eb::engram {

namespace {

void check_tokens(const Geometry& geometry, std::span<const std::int32_t> tokens, const char* what) {
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    const std::int32_t token = tokens[position];
    if (token < kDeadToken || token >= geometry.model.compressed_vocab) {
      fail(Exit::usage, "{} {} holds the compressed id {}: it must be below {} (or {} for a dead token)", what,
           position, token, geometry.model.compressed_vocab, kDeadToken);
    }
  }
}

}  // namespace

std::vector<std::int32_t> hash_ids(const Geometry& geometry, std::span<const std::int32_t> tokens,
                                   std::span<const std::int32_t> history, std::int32_t pad_compressed) {
  if (geometry.model.ids_given) {
    fail(Exit::usage, "model {} has no hash: its row ids are given directly", geometry.model.preset);
  }
  check_tokens(geometry, tokens, "token");
  check_tokens(geometry, history, "history token");
  if (pad_compressed < 0 || pad_compressed >= geometry.model.compressed_vocab) {
    fail(Exit::usage, "the pad token's compressed id {} must be in 0..{}", pad_compressed,
         geometry.model.compressed_vocab - 1);
  }
  const auto heads = static_cast<std::size_t>(geometry.model.heads_per_ngram);
  const int longest = geometry.model.ngram_sizes.back();
  std::vector<std::int32_t> ids;
  ids.reserve(tokens.size() * geometry.layers.size() * static_cast<std::size_t>(geometry.columns));
  const auto past = static_cast<std::int64_t>(history.size());
  for (std::int64_t p = 0; p < static_cast<std::int64_t>(tokens.size()); ++p) {
    for (const LayerGeometry& layer : geometry.layers) {
      std::int64_t rolling = 0;
      bool blocked = false;
      std::size_t column = 0;
      std::size_t size_index = 0;
      for (int shift = 0; shift < longest; ++shift) {
        const std::int64_t source = p - shift;
        std::int32_t token = kDeadToken;  // before the request's start
        if (source >= 0) {
          token = tokens[static_cast<std::size_t>(source)];
        } else if (past + source >= 0) {
          token = history[static_cast<std::size_t>(past + source)];
        }
        blocked = blocked || token == kDeadToken;
        rolling ^= (blocked ? pad_compressed : token) * layer.multipliers[static_cast<std::size_t>(shift)];
        if (geometry.model.ngram_sizes[size_index] != shift + 1) continue;
        ++size_index;
        for (std::size_t head = 0; head < heads; ++head, ++column) {
          ids.push_back(static_cast<std::int32_t>(rolling % layer.head_rows[column] + layer.head_offsets[column]));
        }
      }
    }
  }
  return ids;
}

}  // namespace eb::engram
