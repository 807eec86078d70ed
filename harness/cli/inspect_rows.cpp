// inspect hash and lookup: ids and rows of given tokens.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "harness/base/error.h"
#include "harness/base/sha256.h"
#include "harness/cli/inspect.h"
#include "harness/engram/content.h"
#include "harness/engram/hashing.h"
#include "harness/engram/shards.h"
#include "harness/rank/tables/row_reference.h"
#include "harness/replay/token_model.h"

namespace eb::cli::inspect {

namespace {

// Ids of the chosen layers only: ids[token][layer][column].
struct HashedTokens {
  std::size_t tokens = 0;
  std::vector<std::int32_t> ids;
};

HashedTokens hash_tokens(const Options& options, const Domain& domain) {
  const engram::TokenMap map = replay::read_token_map(options.token_map, domain.geometry.model);
  const std::vector<std::int32_t> tokens = map.compress(replay::read_tokens(options.tokens));
  // A geometry of the chosen layers alone: the others would be hashed for nothing.
  Geometry chosen = domain.geometry;
  chosen.layers.clear();
  for (const std::size_t i : domain.layers) chosen.layers.push_back(domain.geometry.layers[i]);
  HashedTokens result{tokens.size(), {}};
  const std::span<const std::int32_t> all(tokens);
  for (const std::int64_t size : options.chunks) {
    if (size < 1) fail(Exit::usage, "--chunks: a piece has {} tokens, must have 1 or more", size);
  }
  std::size_t piece = 0;
  for (std::size_t done = 0; done < tokens.size(); ++piece) {
    std::size_t count = tokens.size() - done;
    if (!options.chunks.empty()) {
      const std::int64_t size = options.chunks[std::min(piece, options.chunks.size() - 1)];
      count = std::min(count, static_cast<std::size_t>(size));
    }
    const auto ids = engram::hash_ids(chosen, all.subspan(done, count), all.first(done), map.pad_compressed());
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    done += count;
  }
  return result;
}

std::unique_ptr<rank::RowReference> content_of(const Options& options, const Geometry& geometry) {
  if (options.checkpoint.empty()) return rank::make_synthetic_reference(geometry, options.seed);
  return rank::make_checkpoint_reference(geometry, options.checkpoint);
}

}  // namespace

int show_hash(const Options& options) {
  const Domain domain = make_domain(options);
  const HashedTokens hashed = hash_tokens(options, domain);
  const auto columns = static_cast<std::size_t>(domain.geometry.columns);
  const std::size_t stride = domain.layers.size() * columns;
  // Written piece by piece: a book's ids are too many for one document in memory.
  write_out(fmt::format("{{\"model\": {}, \"layers\": {}, \"columns\": {}, \"tokens\": {}, \"ids\": [\n",
                        Json(domain.geometry.model.preset).dump(), layer_numbers(domain).dump(), columns,
                        hashed.tokens));
  for (std::size_t t = 0; t < hashed.tokens; ++t) {
    std::string line = "[";
    for (std::size_t l = 0; l < domain.layers.size(); ++l) {
      const auto* first = hashed.ids.data() + t * stride + l * columns;
      line += fmt::format("{}[{}]", l == 0 ? "" : ", ", fmt::join(first, first + columns, ", "));
    }
    write_out(line + (t + 1 < hashed.tokens ? "],\n" : "]\n"));
  }
  write_out("]}\n");
  return 0;
}

int show_lookup(const Options& options) {
  Domain domain = make_domain(options);
  if (!options.layer && domain.layers.size() > 1) {
    fail(Exit::usage, "lookup is of one layer: give --layer, one of {}", layer_numbers(domain).dump());
  }
  const int shards = options.shards.value_or(1);
  if (!options.shard && shards != 1) fail(Exit::usage, "lookup in {} shards is of one of them: give --shard", shards);
  const Geometry& g = domain.geometry;
  const std::size_t layer = domain.layers.front();
  const engram::Shard shard = engram::make_shard(g, shards, options.shard.value_or(0));
  const HashedTokens hashed = hash_tokens(options, domain);
  const auto content = content_of(options, g);

  std::vector<std::uint8_t> weights(static_cast<std::size_t>(g.row_weight_bytes()));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(g.row_scale_bytes()));
  std::vector<Bf16> value(static_cast<std::size_t>(g.model.dim));
  std::vector<std::byte> bytes(value.size() * 2);
  Sha256 sum;
  write_out(
      fmt::format("{{\"model\": {}, \"layer\": {}, \"first_column\": {}, \"columns\": {}, \"padded_columns\": {}, "
                  "\"tokens\": {}, \"rows\": [\n",
                  Json(g.model.preset).dump(), g.layers[layer].layer, shard.first_column, shard.columns,
                  shard.part - shard.columns, hashed.tokens));
  for (std::size_t t = 0; t < hashed.tokens; ++t) {
    std::string line = "[";
    for (int c = 0; c < shard.part; ++c) {
      const bool padded = c >= shard.columns;  // a head that the shard only has so that all shards are equally wide
      const auto at = t * static_cast<std::size_t>(g.columns) + static_cast<std::size_t>(shard.first_column + c);
      if (padded) {
        std::ranges::fill(value, Bf16{});
      } else {
        content->row(layer, hashed.ids[at], weights, scales);
        engram::row_value(g, weights, scales, value);
      }
      line += fmt::format("{}{{\"row\": {}, \"bf16\": \"", c == 0 ? "" : ", ",
                          padded ? "null" : std::to_string(hashed.ids[at]));
      for (std::size_t i = 0; i < value.size(); ++i) {
        fmt::format_to(std::back_inserter(line), "{:04x}", value[i].bits);
        bytes[2 * i] = static_cast<std::byte>(value[i].bits);
        bytes[2 * i + 1] = static_cast<std::byte>(value[i].bits >> 8);
      }
      line += "\"}";
      sum.update(bytes);
    }
    write_out(line + (t + 1 < hashed.tokens ? "],\n" : "]\n"));
  }
  write_out(fmt::format("], \"sha256\": \"{}\"}}\n", sum.hex()));
  return 0;
}

}  // namespace eb::cli::inspect
