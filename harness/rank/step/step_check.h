// Compares what a step left behind with a reference that knows nothing of the tables in memory: ids and gathered rows
// bit for bit, hidden states within a bound derived from the arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/engram/shards.h"
#include "harness/rank/step/step_program.h"
#include "harness/rank/step/step_runner.h"
#include "harness/rank/step/step_shape.h"
#include "harness/replay/batch_source.h"

namespace eb::rank {

struct HiddenCheck {
  std::int64_t tokens = 0;  // sampled, over all tables
  // Largest error over its own element's bound: passed where it is at most 1.
  double max_error = 0;
};

struct CheckFacts {
  std::int64_t ids_compared = 0;
  std::optional<std::int64_t> rows_compared;  // none: stub, which looks nothing up
  std::optional<HiddenCheck> hidden;
  std::string ids_sha256;     // ids[own tokens][tables][columns], int32
  std::string rows_sha256;    // table after table, [own window][columns][dim] BF16; empty: stub
  std::string hidden_sha256;  // final hidden states [own window][copies][hidden] BF16
};

// What the last step of a slot left behind, on the host.
struct StepOutput {
  StepTokens tokens;
  std::vector<std::int32_t> ids;           // [tokens.lookup][tables][columns]
  std::vector<std::vector<Bf16>> rows;     // [tables] of [window][columns][dim]
  std::vector<std::vector<Bf16>> witness;  // [tables] of [window][columns][kWitness]; empty: rows were kept as consumed
  std::vector<Bf16> hidden;                // [window_valid][copies][hidden]
  std::vector<std::uint8_t> masked;        // [own tokens]
};

// Row ids of a batch by the reference hash, chunk by chunk: [tokens][tables][columns].
[[nodiscard]] std::vector<std::int32_t> reference_ids(const engram::Geometry& geometry, const replay::StepBatch& batch,
                                                      std::int32_t pad_id);

// `batches`: of each replica of shape.edp_replicas, in order. Errors: Error(bad_data) naming layer, replica, token,
// column, wanted and found.
void check_ids(const StepShape& shape, const engram::Geometry& geometry, const StepOutput& output,
               std::span<const replay::StepBatch> batches, std::int32_t pad_id, CheckFacts& facts);
// Own tokens' rows, and zero rows in the window's padding. Errors: Error(bad_data) naming layer, token, column, row,
// wanted and found.
void check_rows(const StepShape& shape, const engram::Geometry& geometry, const RowReference& reference,
                const StepOutput& output, CheckFacts& facts);

// Rows of the own shard as a lookup alone leaves them: `staging[table]` is [lookup tokens][part][dim], for the ids of
// `output`; padded heads, DEAD_ID and ids of other shards are zero rows. Errors: as check_rows.
void check_shard_rows(const StepShape& shape, const engram::Geometry& geometry, const engram::Shard& shard,
                      const RowReference& reference, const StepOutput& output,
                      std::span<const std::vector<Bf16>> staging, CheckFacts& facts);

// Samples captured around the gate, on the host. [tables] of [samples][...].
struct HiddenSamples {
  std::vector<std::int64_t> tokens;
  std::vector<std::vector<Bf16>> before;
  std::vector<std::vector<Bf16>> kv;
  std::vector<std::vector<Bf16>> after;
};
// kv against the product of checked rows and the reference's weights, and the gate's output against its formula, both
// in float64 (docs/step.md derives the bounds). Errors: Error(bad_data) naming layer, token, place, wanted, found,
// bound.
void check_hidden(const StepShape& shape, const engram::Geometry& geometry, const RowReference& reference,
                  const StepOutput& output, const HiddenSamples& samples, CheckFacts& facts);

// Up to four tokens of [0, valid), first and last among them.
[[nodiscard]] std::vector<std::int64_t> sample_tokens(std::int64_t valid);

}  // namespace eb::rank
