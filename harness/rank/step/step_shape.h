// The sizes of one rank's step: who it is in its groups, how wide its rows are, how many tokens each part of a step
// has. Pure: derived from scenario, layout and geometry.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"

namespace eb::rank {

// What stays the same over all steps of a run.
struct StepShape {
  int rank = 0;
  int tp = 1;
  int tp_rank = 0;
  int replica = 0;
  int replicas = 1;  // of the run
  int edp = 1;       // members of the DP exchange; 1 unless table_mode is dp_sharded
  int edp_rank = 0;
  int ep = 1;
  bool sequence_parallel = false;  // never with tp 1, where it changes nothing
  bool dp_sharded = false;
  bool stub = false;              // no table: no lookup, staging stays zero
  std::vector<int> edp_replicas;  // of the own EDP group, in the exchange's order; the own replica alone where edp is 1
  std::vector<int> ep_replicas;   // of the own EP group; the own replica alone where ep is 1

  int tables = 0;        // Engram layers
  int columns = 0;       // hash columns of the model
  int first_column = 0;  // of the own shard
  int shard_columns = 0;
  int part = 0;         // heads of the own staging, padded heads included
  int group_heads = 0;  // heads that a rank has after the DP exchange: part * edp
  int dim = 0;

  int hidden = 0;
  int copies = 0;             // hc_mult
  std::int64_t kv_width = 0;  // (copies + 1) * hidden
  std::int64_t kv_part = 0;   // wkv outputs of one rank: ceil(kv_width / tp), all of them with SP

  int backbone_layers = 0;
  std::int64_t backbone_n = 0;  // inner width of one backbone layer on one rank; 0 = no GEMMs
  int backbone_repeats = 1;     // passes over a layer's weights a token: flops / (2 x weights), rounded, at least 1
  std::int64_t expert_bytes_per_token = 0;

  [[nodiscard]] std::int64_t row_width() const noexcept { return std::int64_t{columns} * dim; }
  // The wait and the collectives of a layer end in a buffer of their own, or (one rank, no exchange) in staging itself.
  [[nodiscard]] bool rows_in_staging() const noexcept { return tp == 1 && edp == 1; }
};

// Errors: Error(usage) where the layout has no such rank or the sizes do not fit together.
[[nodiscard]] StepShape make_shape(const plan::Scenario& scenario, const plan::RunLayout& layout,
                                   const engram::Geometry& geometry, int rank);

// Token counts of one step.
struct StepTokens {
  std::int64_t own = 0;           // of the own replica
  std::int64_t slot = 0;          // common slot: the largest of the EDP group; own where there is no DP exchange
  std::int64_t lookup = 0;        // tokens of the lookup: edp * slot
  std::int64_t window = 0;        // SP: ceil(own / tp); else own
  std::int64_t window_first = 0;  // first token of the own window
  std::int64_t window_valid = 0;  // tokens of the window that exist
  std::int64_t padded = 0;        // tokens of the backbone: window * tp with SP, else own
  std::int64_t expert = 0;        // the largest of the EP group: sizes the expert exchange
};
[[nodiscard]] StepTokens step_tokens(const StepShape& shape, const plan::WorkloadSpec& workload, std::int64_t step);

// Bytes that one rank sends to each EP peer in a layer: the stated bytes of its share of the tokens, split evenly over
// the peers (itself included) and rounded up to 16 B.
[[nodiscard]] std::int64_t expert_message_bytes(const StepShape& shape, std::int64_t tokens);

// Backbone layer -> index into Geometry::layers, or -1.
[[nodiscard]] int table_of_layer(const engram::Geometry& geometry, int layer);

}  // namespace eb::rank
