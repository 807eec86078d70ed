// inspect layout, shards, groups, ledger: what follows from the model and the ranks alone.
#include <algorithm>

#include "harness/base/error.h"
#include "harness/cli/inspect.h"
#include "harness/engram/shards.h"
#include "harness/plan/scenario.h"

namespace eb::cli::inspect {

int show_layout(const Options& options) {
  const Domain domain = make_domain(options);
  const Geometry& g = domain.geometry;
  const engram::Model& m = g.model;
  Json layers = Json::array();
  std::int64_t rows = 0;
  std::int64_t split_bytes = 0;
  std::int64_t interleaved_bytes = 0;
  for (const std::size_t i : domain.layers) {
    const engram::LayerGeometry& layer = g.layers[i];
    rows += layer.rows;
    split_bytes += g.table_bytes(i, Layout::split);
    interleaved_bytes += g.table_bytes(i, Layout::interleaved);
    layers.push_back({{"layer", layer.layer},
                      {"rows", layer.rows},
                      {"split_bytes", g.table_bytes(i, Layout::split)},
                      {"interleaved_bytes", g.table_bytes(i, Layout::interleaved)},
                      {"head_rows", layer.head_rows},
                      {"head_offsets", layer.head_offsets},
                      {"multipliers", layer.multipliers}});
  }
  print({{"model", m.preset},
         {"table_scale", domain.table_scale},
         {"ngram_sizes", m.ngram_sizes},
         {"heads_per_ngram", m.heads_per_ngram},
         {"columns", g.columns},
         {"dim", m.dim},
         {"block", m.block},
         {"format", m.format == engram::RowFormat::bf16 ? "bf16" : "e4m3_ue8m0"},
         {"compressed_vocab", m.compressed_vocab},
         {"raw_vocab", m.raw_vocab},
         {"pad_token", m.pad_token},
         {"hidden_size", m.hidden},
         {"hc_mult", m.hc_mult},
         {"row_weight_bytes", g.row_weight_bytes()},
         {"row_scale_bytes", g.row_scale_bytes()},
         {"split_row_bytes", g.row_stride(Layout::split)},
         {"interleaved_row_bytes", g.row_stride(Layout::interleaved)},
         {"rows", rows},
         {"split_bytes", split_bytes},
         {"interleaved_bytes", interleaved_bytes},
         {"layers", layers}});
  return 0;
}

namespace {

Json shard_json(const Domain& domain, const engram::Shard& shard) {
  Json rows = Json::array();
  for (const std::size_t i : domain.layers) {
    rows.push_back({{"layer", domain.geometry.layers[i].layer},
                    {"first_row", shard.rows[i].first},
                    {"rows", shard.rows[i].count}});
  }
  return {{"shard", shard.index},
          {"first_column", shard.first_column},
          {"columns", shard.columns},
          {"padded_columns", shard.part - shard.columns},
          {"split_bytes", shard.table_bytes(domain.geometry, Layout::split)},
          {"interleaved_bytes", shard.table_bytes(domain.geometry, Layout::interleaved)},
          {"layers", rows}};
}

// Hosts as given, or all ranks on one host.
std::vector<int> hosts_of(const Options& options) {
  constexpr int kMaxRanks = 1 << 16;
  if (options.tp < 1 || options.dp < 1 || options.tp > kMaxRanks / options.dp) {
    fail(Exit::usage, "--tp {} and --dp {}: both must be 1 or more, at most {} ranks in all", options.tp, options.dp,
         kMaxRanks);
  }
  const auto ranks = static_cast<std::size_t>(options.tp) * static_cast<std::size_t>(options.dp);
  if (options.host_of_rank.empty()) return std::vector<int>(ranks, 0);
  if (options.host_of_rank.size() != ranks) {
    fail(Exit::usage, "--host-of-rank names {} ranks, --tp {} x --dp {} are {}", options.host_of_rank.size(),
         options.tp, options.dp, ranks);
  }
  return options.host_of_rank;
}

// Ranks are numbered replica-major; shards TP-major over the EDP group where the heads are split over it too.
Json ranks_json(const Options& options, int edp, bool split_over_group) {
  Json ranks = Json::array();
  for (int replica = 0; replica < options.dp; ++replica) {
    for (int tp_rank = 0; tp_rank < options.tp; ++tp_rank) {
      const int edp_rank = replica % edp;
      ranks.push_back({{"rank", replica * options.tp + tp_rank},
                       {"replica", replica},
                       {"tp_rank", tp_rank},
                       {"edp_rank", edp_rank},
                       {"shard", split_over_group ? tp_rank * edp + edp_rank : tp_rank}});
    }
  }
  return ranks;
}

}  // namespace

int show_shards(const Options& options) {
  const Domain domain = make_domain(options);
  const bool split_over_group = options.table_mode == engram::TableMode::dp_sharded;
  const int edp = engram::edp_group_size(hosts_of(options), options.dp, options.tp);
  const int shards = options.shards.value_or(split_over_group ? options.tp * edp : options.tp);
  Json list = Json::array();
  for (int index = 0; index < std::max(shards, 1); ++index) {
    list.push_back(shard_json(domain, engram::make_shard(domain.geometry, shards, index)));
  }
  Json out = {{"model", domain.geometry.model.preset},
              {"columns", domain.geometry.columns},
              {"shards", shards},
              {"columns_per_shard", engram::make_shard(domain.geometry, shards, 0).part},
              {"list", list}};
  if (!options.shards) {
    out["table_mode"] = plan::name(options.table_mode);
    out["edp_group_size"] = edp;
    out["ranks"] = ranks_json(options, edp, split_over_group);
  }
  print(out);
  return 0;
}

int show_groups(const Options& options) {
  const std::vector<int> hosts = hosts_of(options);
  const int size = engram::edp_group_size(hosts, options.dp, options.tp);
  print({{"ranks", hosts.size()},
         {"tp", options.tp},
         {"dp", options.dp},
         {"host_of_rank", hosts},
         {"edp_group_size", size},
         {"groups", engram::edp_groups(static_cast<int>(hosts.size()), options.tp, size)}});
  return 0;
}

int show_ledger(const Options& options) {
  const Domain domain = make_domain(options);
  const std::vector<int> hosts = hosts_of(options);
  engram::LedgerInput input;
  input.tp = options.tp;
  input.dp = options.dp;
  input.edp_group = engram::edp_group_size(hosts, options.dp, options.tp);
  input.table_mode = options.table_mode;
  input.layout = options.layout;
  input.max_tokens = options.max_tokens;
  input.copies_per_shard = options.copies;
  input.round_pinned_to_power_of_two = options.power_of_two;
  if (std::ranges::any_of(hosts, [&](int host) { return host != hosts.front(); })) {
    fail(Exit::usage, "the ledger is of one host: give the ranks of that host alone");
  }
  if (input.table_mode != engram::TableMode::private_ && input.edp_group < 2) {
    fail(Exit::usage, "table mode {} needs replicas that can share: --dp is {}", plan::name(input.table_mode),
         options.dp);
  }
  const engram::Ledger ledger = engram::make_ledger(domain.geometry, input);
  print({{"model", domain.geometry.model.preset},
         {"table_scale", domain.table_scale},
         {"tp", options.tp},
         {"dp", options.dp},
         {"edp_group_size", input.edp_group},
         {"table_mode", plan::name(input.table_mode)},
         {"layout", plan::name(input.layout)},
         {"table_bytes_one_copy", ledger.table_bytes_one_copy},
         {"table_bytes", ledger.table_bytes},
         {"backing_bytes", ledger.backing_bytes},
         {"max_tokens", options.max_tokens},
         {"staging_bytes_per_rank", ledger.staging_bytes_per_rank},
         {"source_bytes_per_token_and_layer", ledger.source_bytes_per_token},
         {"staging_traffic_bytes_per_token_and_layer", ledger.staging_traffic_per_token}});
  return 0;
}

}  // namespace eb::cli::inspect
