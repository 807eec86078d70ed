// Streams of compressed token ids: where the ids of a workload come from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/engram/token_map.h"
#include "harness/plan/scenario.h"

namespace eb::replay {

// A stream is an endless token sequence named by a number; tokens [first, first + out.size()) of it are random access
// and deterministic in (seed, stream).
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual void fill(std::uint64_t seed, std::uint64_t stream, std::int64_t first,
                    std::span<std::int32_t> out) const = 0;
};

// uniform; constant; file (a stream starts at its own place in the file and wraps); zipf_ngram (tokens by Zipf rank,
// and with `repeat_probability` a continuation that what stands before often has; docs/token-models.md). Errors:
// Error(usage): empty token file, size that is no multiple of 4, an id out of the vocabulary, unreadable file. The
// objects are immutable: any number of threads may fill at once.
[[nodiscard]] std::shared_ptr<const TokenModel> make_token_model(const plan::TokenSpec& spec,
                                                                 const engram::Model& model);

// A token file: little-endian uint32 raw ids. Errors: Error(usage) that names the file.
[[nodiscard]] std::vector<std::int32_t> read_token_file(const std::string& path);
// Raw ids from a file or, with "-", standard input: a JSON list of integers, of which -1 is a dead token, or binary
// little-endian uint32. Errors: Error(usage), for an empty list too.
[[nodiscard]] std::vector<std::int32_t> read_tokens(const std::string& path);
// "identity", or a file: JSON list of integers (index = raw id) or binary little-endian uint32.
[[nodiscard]] engram::TokenMap read_token_map(const std::string& spec, const engram::Model& model);

}  // namespace eb::replay
