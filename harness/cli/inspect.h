// What the files of `inspect` share: its options, the chosen model, and how they print.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/engram/ledger.h"

namespace eb::cli::inspect {

using Json = nlohmann::ordered_json;
using engram::Geometry;
using engram::Layout;

struct Options {
  std::string model = "deepseek-v4.1-flash";
  std::optional<double> table_scale;
  std::optional<int> layer;
  std::optional<int> shards;  // absent: from the ranks
  std::optional<int> shard;
  int tp = 1;
  int dp = 1;
  std::vector<int> host_of_rank;
  engram::TableMode table_mode = engram::TableMode::shared;
  Layout layout = Layout::split;
  std::int64_t max_tokens = 0;
  std::vector<int> copies;
  bool power_of_two = false;
  std::string tokens;
  std::string token_map = "identity";
  std::vector<std::int64_t> chunks;
  std::uint64_t seed = 1;
  std::string checkpoint;
};

struct Domain {
  Geometry geometry;
  double table_scale = 1.0;
  std::vector<std::size_t> layers;  // chosen entries of geometry.layers
};

// Errors: Error(usage) for an unknown model, a file that is none, a layer without a table.
[[nodiscard]] Domain make_domain(const Options& options);
[[nodiscard]] Json layer_numbers(const Domain& domain);

// To standard output. Errors: Error(failure), so that a full disk is no success.
void write_out(const std::string& text);
void print(const Json& json);

// One a subcommand; each prints and returns the exit code.
[[nodiscard]] int show_layout(const Options& options);
[[nodiscard]] int show_shards(const Options& options);
[[nodiscard]] int show_groups(const Options& options);
[[nodiscard]] int show_ledger(const Options& options);
[[nodiscard]] int show_hash(const Options& options);
[[nodiscard]] int show_lookup(const Options& options);
[[nodiscard]] int show_stats(const Options& options);

}  // namespace eb::cli::inspect
