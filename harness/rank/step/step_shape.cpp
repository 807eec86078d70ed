#include "harness/rank/step/step_shape.h"

#include <algorithm>
#include <cmath>

#include "harness/base/error.h"

namespace eb::rank {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Replicas of the group in `groups` that holds `rank`, or the own replica alone.
std::vector<int> replicas_of(const std::vector<std::vector<int>>& groups, const plan::RunLayout& layout, int rank) {
  for (const auto& group : groups) {
    if (std::find(group.begin(), group.end(), rank) == group.end()) continue;
    std::vector<int> replicas;
    for (const int member : group) replicas.push_back(layout.ranks.at(static_cast<std::size_t>(member)).replica);
    return replicas;
  }
  return {layout.ranks.at(static_cast<std::size_t>(rank)).replica};
}

// Matrix units want rows of whole 256 bytes; from this width on the rounding is below 7 %.
std::int64_t aligned(std::int64_t width) { return width < 1024 ? width : (width + 64) / 128 * 128; }

void set_backbone(StepShape& shape, const plan::Scenario& scenario) {
  const plan::Backbone& backbone = scenario.model.backbone;
  shape.backbone_layers = backbone.layers;
  const double weights = static_cast<double>(backbone.weight_bytes_per_layer) * backbone.scale;
  // Nothing stated is no work; anything stated is at least one inner column.
  if (weights > 0)
    shape.backbone_n = aligned(
        std::max<std::int64_t>(1, std::llround(weights / (2.0 * shape.hidden * static_cast<double>(shape.tp)))));
  // Two operations a parameter and token are what the two GEMMs do; a layer stated with more passes repeats them.
  if (backbone.weight_bytes_per_layer > 0 && backbone.flops_per_token_per_layer > 0)
    shape.backbone_repeats = static_cast<int>(
        std::max<std::int64_t>(1, std::llround(static_cast<double>(backbone.flops_per_token_per_layer) /
                                               (2.0 * static_cast<double>(backbone.weight_bytes_per_layer)))));
  shape.expert_bytes_per_token = backbone.expert_bytes_per_token;
}

}  // namespace

StepShape make_shape(const plan::Scenario& scenario, const plan::RunLayout& layout, const engram::Geometry& geometry,
                     int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= layout.ranks.size())
    fail(Exit::usage, "rank {} is not in the layout of {} ranks", rank, layout.ranks.size());
  const plan::RankPlace& place = layout.ranks[static_cast<std::size_t>(rank)];
  StepShape shape;
  shape.rank = rank;
  shape.tp = scenario.parallel.tp;
  shape.tp_rank = place.tp_rank;
  shape.replica = place.replica;
  shape.replicas = scenario.parallel.dp;
  shape.sequence_parallel = scenario.parallel.sequence_parallel && shape.tp > 1;
  shape.dp_sharded = scenario.parallel.table_mode == plan::TableMode::dp_sharded;
  shape.stub = scenario.storage.backing == plan::Backing::stub;
  shape.edp_replicas = {shape.replica};
  if (shape.dp_sharded) {
    shape.edp_replicas = replicas_of(layout.edp_groups, layout, rank);
    shape.edp = static_cast<int>(shape.edp_replicas.size());
    shape.edp_rank = place.edp_rank;
  }
  shape.ep_replicas = {shape.replica};
  if (scenario.parallel.ep > 1) {
    shape.ep_replicas = replicas_of(layout.ep_groups, layout, rank);
    shape.ep = static_cast<int>(shape.ep_replicas.size());
  }

  shape.tables = static_cast<int>(geometry.layers.size());
  shape.columns = geometry.columns;
  shape.first_column = place.shard.first_column;
  shape.shard_columns = place.shard.columns;
  shape.part = place.shard.part;
  shape.group_heads = shape.part * shape.edp;
  shape.dim = geometry.model.dim;
  if (shape.group_heads * shape.tp < shape.columns)
    fail(Exit::usage, "{} heads a rank over {} TP x {} EDP ranks do not cover {} hash columns", shape.part, shape.tp,
         shape.edp, shape.columns);

  shape.hidden = geometry.model.hidden;
  shape.copies = geometry.model.hc_mult;
  if (shape.hidden < 1 || shape.copies < 1)
    fail(Exit::usage,
         "a step needs model.hidden_size and model.hc_mult of at least 1, found {} and {}: this model has rows only",
         shape.hidden, shape.copies);
  shape.kv_width = std::int64_t{shape.copies + 1} * shape.hidden;
  shape.kv_part = shape.sequence_parallel ? shape.kv_width : ceil_div(shape.kv_width, shape.tp);
  if (!shape.sequence_parallel && shape.kv_part * (shape.tp - 1) >= shape.kv_width)
    fail(Exit::usage, "{} wkv outputs cannot be split over {} TP ranks", shape.kv_width, shape.tp);
  set_backbone(shape, scenario);
  for (const auto& layer : geometry.layers)
    if (layer.layer >= shape.backbone_layers)
      fail(Exit::usage, "Engram layer {} lies behind the {} backbone layers: set model.backbone.layers to at least {}",
           layer.layer, shape.backbone_layers, layer.layer + 1);
  return shape;
}

StepTokens step_tokens(const StepShape& shape, const plan::WorkloadSpec& workload, std::int64_t step) {
  StepTokens tokens;
  tokens.own = workload.step_tokens(shape.replica, step);
  tokens.slot = tokens.own;
  for (const int replica : shape.edp_replicas) tokens.slot = std::max(tokens.slot, workload.step_tokens(replica, step));
  tokens.lookup = tokens.slot * shape.edp;
  tokens.window = shape.sequence_parallel ? ceil_div(tokens.own, shape.tp) : tokens.own;
  tokens.window_first = shape.sequence_parallel ? tokens.window * shape.tp_rank : 0;
  tokens.window_valid = std::clamp<std::int64_t>(tokens.own - tokens.window_first, 0, tokens.window);
  tokens.padded = shape.sequence_parallel ? tokens.window * shape.tp : tokens.own;
  for (const int replica : shape.ep_replicas)
    tokens.expert = std::max(tokens.expert, workload.step_tokens(replica, step));
  return tokens;
}

std::int64_t expert_message_bytes(const StepShape& shape, std::int64_t tokens) {
  const std::int64_t of_rank = shape.expert_bytes_per_token * ceil_div(tokens, shape.tp);
  return ceil_div(ceil_div(of_rank, shape.ep), 16) * 16;
}

int table_of_layer(const engram::Geometry& geometry, int layer) {
  for (std::size_t i = 0; i < geometry.layers.size(); ++i)
    if (geometry.layers[i].layer == layer) return static_cast<int>(i);
  return -1;
}

}  // namespace eb::rank
