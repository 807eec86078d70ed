#include "harness/rank/step/step_check.h"

#include <algorithm>
#include <cstring>

#include "harness/base/error.h"
#include "harness/base/sha256.h"
#include "harness/engram/content.h"
#include "harness/engram/hashing.h"
#include "kernels/hash.h"

namespace eb::rank {
namespace {

int layer_of(const engram::Geometry& geometry, int table) {
  return geometry.layers[static_cast<std::size_t>(table)].layer;
}

template <typename T>
std::span<const std::byte> bytes_of(const T* values, std::int64_t count) {
  return std::as_bytes(std::span(values, static_cast<std::size_t>(count)));
}

// What a wrong row most likely means, where the poison is still there.
const char* poison_note(std::uint16_t found) {
  return found == 0xFFFF ? " (the poison that was there before the step: the lookup did not run or came too late)" : "";
}

[[noreturn]] void wrong_row(int layer, std::int64_t token, int column, std::int64_t row, std::span<const Bf16> wanted,
                            const Bf16* found) {
  std::size_t i = 0;
  while (wanted[i] == found[i]) ++i;
  fail(Exit::bad_data,
       "layer {}, token {}, column {}, row {}: element {} of the gathered row should be 0x{:04x}, found 0x{:04x}{}",
       layer, token, column, row, i, wanted[i].bits, found[i].bits, poison_note(found[i].bits));
}

}  // namespace

std::vector<std::int64_t> sample_tokens(std::int64_t valid) {
  std::vector<std::int64_t> tokens;
  if (valid < 1) return tokens;
  for (const std::int64_t token : {std::int64_t{0}, valid / 3, 2 * valid / 3, valid - 1})
    if (tokens.empty() || token > tokens.back()) tokens.push_back(token);
  return tokens;
}

std::vector<std::int32_t> reference_ids(const engram::Geometry& geometry, const replay::StepBatch& batch,
                                        std::int32_t pad_id) {
  std::vector<std::int32_t> ids;
  std::size_t token = 0;
  while (token < batch.position.size()) {
    // A chunk's tokens follow each other; the next chunk begins behind its own look-back slots.
    std::size_t end = token + 1;
    while (end < batch.position.size() && batch.position[end] == batch.position[end - 1] + 1) ++end;
    const auto first = static_cast<std::size_t>(batch.position[token]);
    const std::span<const std::int32_t> context(batch.context);
    const std::vector<std::int32_t> chunk =
        engram::hash_ids(geometry, context.subspan(first, end - token),
                         context.subspan(first - kernels::kLookBack, kernels::kLookBack), pad_id);
    ids.insert(ids.end(), chunk.begin(), chunk.end());
    token = end;
  }
  return ids;
}

void check_ids(const StepShape& shape, const engram::Geometry& geometry, const StepOutput& output,
               std::span<const replay::StepBatch> batches, std::int32_t pad_id, CheckFacts& facts) {
  const std::int64_t id_row = std::int64_t{shape.tables} * shape.columns;
  for (std::size_t member = 0; member < batches.size(); ++member) {
    std::vector<std::int32_t> wanted = reference_ids(geometry, batches[member], pad_id);
    if (static_cast<std::int64_t>(wanted.size()) > output.tokens.slot * id_row)
      fail(Exit::bad_data, "replica {} has {} tokens, more than the common slot of {}", shape.edp_replicas[member],
           batches[member].tokens(), output.tokens.slot);
    wanted.resize(static_cast<std::size_t>(output.tokens.slot * id_row), engram::kDeadId);
    const std::int32_t* found = output.ids.data() + static_cast<std::int64_t>(member) * output.tokens.slot * id_row;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == found[i]) continue;
      const auto place = static_cast<std::int64_t>(i);
      fail(Exit::bad_data, "layer {}, replica {} token {}, column {}: the row id should be {}, found {}",
           layer_of(geometry, static_cast<int>(place % id_row / shape.columns)), shape.edp_replicas[member],
           place / id_row, place % shape.columns, wanted[i], found[i]);
    }
    facts.ids_compared += static_cast<std::int64_t>(wanted.size());
  }
  facts.ids_sha256 = sha256_hex(
      bytes_of(output.ids.data() + shape.edp_rank * output.tokens.slot * id_row, output.tokens.own * id_row));
}

void check_rows(const StepShape& shape, const engram::Geometry& geometry, const RowReference& reference,
                const StepOutput& output, CheckFacts& facts) {
  if (shape.stub) return;
  std::vector<std::uint8_t> weights(static_cast<std::size_t>(geometry.row_weight_bytes()));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(geometry.row_scale_bytes()));
  std::vector<Bf16> wanted(static_cast<std::size_t>(shape.dim));
  const std::int64_t id_row = std::int64_t{shape.tables} * shape.columns;
  const std::int32_t* own_ids =
      output.ids.data() + (shape.edp_rank * output.tokens.slot + output.tokens.window_first) * id_row;
  std::int64_t compared = 0;
  Sha256 sum;
  for (int table = 0; table < shape.tables; ++table) {
    const Bf16* rows = output.rows[static_cast<std::size_t>(table)].data();
    for (std::int64_t token = 0; token < output.tokens.window; ++token) {
      for (int column = 0; column < shape.columns; ++column) {
        std::int64_t row = engram::kDeadId;
        std::fill(wanted.begin(), wanted.end(), Bf16{});
        if (token < output.tokens.window_valid) {
          row = own_ids[token * id_row + std::int64_t{table} * shape.columns + column];
          reference.row(static_cast<std::size_t>(table), row, weights, scales);
          engram::row_value(geometry, weights, scales, wanted);
        }
        const Bf16* found = rows + (token * shape.columns + column) * shape.dim;
        if (std::memcmp(found, wanted.data(), wanted.size() * sizeof(Bf16)) != 0)
          wrong_row(layer_of(geometry, table), output.tokens.window_first + token, column, row, wanted, found);
        if (!output.witness.empty()) {
          const auto place = static_cast<std::size_t>((token * shape.columns + column) * kWitness);
          const Bf16* seen = output.witness[static_cast<std::size_t>(table)].data() + place;
          if (std::memcmp(seen, wanted.data(), kWitness * sizeof(Bf16)) != 0)
            wrong_row(layer_of(geometry, table), output.tokens.window_first + token, column, row, wanted, seen);
        }
        ++compared;
      }
    }
    sum.update(bytes_of(rows, output.tokens.window_valid * shape.row_width()));
  }
  facts.rows_compared = compared;
  facts.rows_sha256 = sum.hex();
}

void check_shard_rows(const StepShape& shape, const engram::Geometry& geometry, const engram::Shard& shard,
                      const RowReference& reference, const StepOutput& output,
                      std::span<const std::vector<Bf16>> staging, CheckFacts& facts) {
  std::vector<std::uint8_t> weights(static_cast<std::size_t>(geometry.row_weight_bytes()));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(geometry.row_scale_bytes()));
  std::vector<Bf16> wanted(static_cast<std::size_t>(shape.dim));
  const std::int64_t id_row = std::int64_t{shape.tables} * shape.columns;
  std::int64_t compared = 0;
  Sha256 sum;
  for (std::size_t table = 0; table < staging.size(); ++table) {
    const engram::RowRange& range = shard.rows[table];
    const std::int32_t* ids = output.ids.data() + static_cast<std::int64_t>(table) * shape.columns + shape.first_column;
    for (std::int64_t token = 0; token < output.tokens.lookup; ++token) {
      for (int head = 0; head < shape.part; ++head, ++compared) {
        const std::int64_t row = head < shape.shard_columns ? ids[token * id_row + head] : engram::kDeadId;
        std::fill(wanted.begin(), wanted.end(), Bf16{});
        if (row >= range.first && row < range.first + range.count) {
          reference.row(table, row, weights, scales);
          engram::row_value(geometry, weights, scales, wanted);
        }
        const Bf16* found = staging[table].data() + (token * shape.part + head) * shape.dim;
        if (std::memcmp(found, wanted.data(), wanted.size() * sizeof(Bf16)) != 0)
          wrong_row(layer_of(geometry, static_cast<int>(table)), token, shape.first_column + head, row, wanted, found);
      }
    }
    sum.update(std::as_bytes(std::span(staging[table])));
  }
  facts.rows_compared = compared;
  facts.rows_sha256 = sum.hex();
}

}  // namespace eb::rank
