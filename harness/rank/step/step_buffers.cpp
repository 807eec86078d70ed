#include "harness/rank/step/step_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "harness/base/error.h"
#include "harness/engram/content.h"
#include "harness/rank/tables/storage.h"
#include "kernels/hash.h"

namespace eb::rank {
namespace {

using backend::Backend;
using backend::MemoryKind;
using backend::OpKind;
using backend::StreamId;

// A buffer of `count` elements of `bytes`; of one element where a step has none, so that its address is valid.
BufferPtr make(Backend& backend, std::int64_t count, std::size_t bytes, const char* what) {
  return backend.allocate(std::max<std::size_t>(static_cast<std::size_t>(count) * bytes, 64), MemoryKind::device, what);
}

template <typename T>
void upload_values(Backend& backend, StreamId stream, const BufferPtr& buffer, const std::vector<T>& values) {
  upload(backend, stream, buffer->data(), std::as_bytes(std::span(values)));
}

kernels::HashLayer hash_layer(const engram::Geometry& geometry, const engram::LayerGeometry& layer) {
  kernels::HashLayer out{};
  for (int i = 0; i <= kernels::kLookBack; ++i) out.multipliers[i] = layer.multipliers[static_cast<std::size_t>(i)];
  for (int c = 0; c < geometry.columns; ++c) {
    out.primes[c] = layer.head_rows[static_cast<std::size_t>(c)];
    out.offsets[c] = layer.head_offsets[static_cast<std::size_t>(c)];
  }
  return out;
}

// Elements of large matrices are made by all CPUs of the rank: a whole backbone has 10^10 of them.
void backbone_weights(const std::string& name, std::uint64_t seed, std::int64_t fan_in, std::span<Bf16> out) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const std::size_t threads =
      std::clamp<std::size_t>(out.size() / kPiece, 1, static_cast<std::size_t>(allowed_cpu_count()));
  const std::size_t part = (out.size() + threads - 1) / threads;
  std::vector<std::jthread> others;
  const auto make_part = [&](std::size_t i) {
    const std::size_t first = std::min(out.size(), i * part);
    engram::synthetic_weights(name, seed, fan_in, static_cast<std::int64_t>(first),
                              out.subspan(first, std::min(part, out.size() - first)));
  };
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(make_part, i);
  make_part(0);
}

}  // namespace

void StepLimits::cover(const StepTokens& tokens) noexcept {
  most.own = std::max(most.own, tokens.own);
  most.slot = std::max(most.slot, tokens.slot);
  most.lookup = std::max(most.lookup, tokens.lookup);
  most.window = std::max(most.window, tokens.window);
  most.padded = std::max(most.padded, tokens.padded);
  most.expert = std::max(most.expert, tokens.expert);
}

bool StepLimits::fits_in(const StepLimits& other) const noexcept {
  return most.own <= other.most.own && most.slot <= other.most.slot && most.lookup <= other.most.lookup &&
         most.window <= other.most.window && most.padded <= other.most.padded && most.expert <= other.most.expert;
}

void upload(Backend& backend, StreamId stream, std::byte* dst, std::span<const std::byte> src) {
  if (src.empty()) return;
  const BufferPtr pinned = backend.allocate(src.size(), MemoryKind::pinned_host, "upload");
  std::memcpy(pinned->data(), src.data(), src.size());
  backend.copy(stream, {OpKind::copy, -1}, dst, pinned->data(), src.size());
  backend.synchronize();
}

std::vector<std::byte> download(Backend& backend, StreamId stream, const std::byte* src, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  if (bytes == 0) return out;
  const BufferPtr pinned = backend.allocate(bytes, MemoryKind::pinned_host, "download");
  backend.copy(stream, {OpKind::copy, -1}, pinned->data(), src, bytes);
  backend.synchronize();
  std::memcpy(out.data(), pinned->data(), bytes);
  return out;
}

StepBuffers::StepBuffers(Backend& backend, const StepShape& shape, const StepLimits& wanted, std::uint64_t seed,
                         StreamId stream)
    : limits(wanted) {
  const StepTokens& most = limits.most;
  const std::int64_t id_row = std::int64_t{shape.tables} * shape.columns;
  const std::int64_t hidden_row = std::int64_t{shape.copies} * shape.hidden;
  const std::int64_t group_row = std::int64_t{shape.group_heads} * shape.dim;
  for (int i = 0; i < kInFlight; ++i) {
    const auto slot = static_cast<std::size_t>(i);
    ids[slot] = make(backend, most.slot * id_row, 4, "ids");
    masked[slot] = make(backend, most.own, 1, "masks");
    if (shape.edp > 1) ids_exchanged[slot] = make(backend, most.lookup * id_row, 4, "exchanged ids");
  }
  for (int i = 0; i < shape.tables; ++i) {
    TableBuffers table;
    const std::int64_t rows = most.lookup * shape.part;
    table.staging = make(backend, rows * shape.dim, 2, "staging");
    table.order = make(backend, rows, 4, "lookup order");
    if (shape.rows_in_staging())
      table.witness = make(backend, rows * kWitness, 2, "rows as consumed");
    else
      table.rows = make(backend, most.window * shape.row_width(), 2, "gathered rows");
    tables.push_back(std::move(table));
  }
  if (shape.edp > 1) exchanged = make(backend, shape.edp * most.lookup * shape.part * shape.dim, 2, "exchanged rows");
  if (shape.edp > 1 && shape.tp > 1) group_rows = make(backend, most.own * group_row, 2, "own rows of the group");
  if (shape.tp > 1) gathered = make(backend, shape.tp * most.own * group_row, 2, "rows of all TP ranks");
  if (shape.tp > 1 && !shape.sequence_parallel) {
    kv_own = make(backend, most.own * shape.kv_part, 2, "own wkv outputs");
    kv_gathered = make(backend, shape.tp * most.own * shape.kv_part, 2, "wkv outputs of all TP ranks");
  }
  kv = make(backend, most.window * shape.kv_width, 2, "kv");
  hidden = make(backend, most.padded * hidden_row, 2, "hidden");
  inner = make(backend, most.padded * shape.backbone_n, 2, "inner activations");
  if (shape.ep > 1) {
    const std::int64_t message = expert_message_bytes(shape, most.expert);
    expert_send = make(backend, shape.ep * message, 1, "expert exchange, sent");
    expert_recv = make(backend, shape.ep * message, 1, "expert exchange, received");
  }
  std::vector<Bf16> pool(static_cast<std::size_t>((most.padded + kPoolSlack) * hidden_row));
  // Same on all ranks of a replica, other on each replica.
  engram::synthetic_weights(fmt::format("hidden.replica.{}", shape.replica), seed, 1, 0, pool);
  hidden_pool = make(backend, static_cast<std::int64_t>(pool.size()), 2, "initial hidden states");
  upload_values(backend, stream, hidden_pool, pool);
}

std::string weight_name(int layer, const char* part) { return fmt::format("layers.{}.{}", layer, part); }

StepWeights::StepWeights(Backend& backend, const StepShape& shape, const engram::Geometry& geometry,
                         const RowReference& reference, std::uint64_t seed, StreamId stream) {
  const std::int64_t width = shape.row_width();
  const std::int64_t gate_size = std::int64_t{shape.copies} * shape.hidden;
  for (const auto& layer : geometry.layers) {
    // Outputs behind the last real one (where they do not divide by tp) are zero weights.
    std::vector<Bf16> values(static_cast<std::size_t>(shape.kv_part * width));
    const std::int64_t first = shape.sequence_parallel ? 0 : shape.tp_rank * shape.kv_part;
    const std::int64_t real = std::clamp<std::int64_t>(shape.kv_width - first, 0, shape.kv_part);
    reference.weights(weight_name(layer.layer, "engram.wkv.weight"), width, first * width,
                      std::span(values).first(static_cast<std::size_t>(real * width)));
    wkv.push_back(backend.upload_matrix(values, shape.kv_part, width));
    for (const bool is_q : {true, false}) {
      std::vector<Bf16> scale(static_cast<std::size_t>(gate_size));
      // Elementwise scales: one input an output.
      reference.weights(weight_name(layer.layer, is_q ? "engram.q_weight" : "engram.k_weight"), 1, 0, scale);
      BufferPtr buffer = make(backend, gate_size, 2, is_q ? "q weights" : "k weights");
      upload_values(backend, stream, buffer, scale);
      (is_q ? q : k).push_back(std::move(buffer));
    }
  }
  if (shape.backbone_n > 0) {
    std::vector<Bf16> values(static_cast<std::size_t>(shape.backbone_n * shape.hidden));
    for (int layer = 0; layer < shape.backbone_layers; ++layer) {
      backbone_weights(weight_name(layer, "backbone.up"), seed, shape.hidden, values);
      up.push_back(backend.upload_matrix(values, shape.backbone_n, shape.hidden));
      backbone_weights(weight_name(layer, "backbone.down"), seed, shape.backbone_n, values);
      down.push_back(backend.upload_matrix(values, shape.hidden, shape.backbone_n));
    }
  }
  hash_layers = make_hash_layers(backend, geometry, stream);
}

BufferPtr make_hash_layers(Backend& backend, const engram::Geometry& geometry, StreamId stream) {
  std::vector<kernels::HashLayer> layers;
  for (const auto& layer : geometry.layers) layers.push_back(hash_layer(geometry, layer));
  BufferPtr buffer =
      make(backend, static_cast<std::int64_t>(layers.size()), sizeof(kernels::HashLayer), "hash constants");
  upload_values(backend, stream, buffer, layers);
  return buffer;
}

kernels::HashArgs hash_args(const engram::Geometry& geometry, const BufferPtr& hash_layers, std::int32_t pad_id) {
  kernels::HashArgs args;
  args.layers = hash_layers->as<kernels::HashLayer>();
  args.layer_count = static_cast<int>(geometry.layers.size());
  args.columns = geometry.columns;
  for (int c = 0; c < geometry.columns; ++c)
    args.column_ngram[c] = geometry.model.ngram_sizes[static_cast<std::size_t>(c / geometry.model.heads_per_ngram)];
  args.pad_id = pad_id;
  return args;
}

SlotBatches::SlotBatches(Backend& backend, StreamId stream, const replay::BatchSource& source, std::int64_t first_step,
                         std::int64_t steps) {
  std::vector<std::int32_t> contexts;
  std::vector<std::int32_t> positions;
  std::vector<std::uint8_t> masks;
  for (std::int64_t i = 0; i < steps; ++i) {
    replay::StepBatch batch = source.step(first_step + i);
    places_.push_back({contexts.size(), positions.size(), batch.tokens()});
    contexts.insert(contexts.end(), batch.context.begin(), batch.context.end());
    positions.insert(positions.end(), batch.position.begin(), batch.position.end());
    masks.insert(masks.end(), batch.masked.begin(), batch.masked.end());
    if (masks.size() != positions.size())
      fail(Exit::failure, "step {}: {} masks for {} tokens", first_step + i, batch.masked.size(), batch.tokens());
    if (i + 1 == steps) last_ = std::move(batch);
  }
  context_ = make(backend, static_cast<std::int64_t>(contexts.size()), 4, "token contexts");
  position_ = make(backend, static_cast<std::int64_t>(positions.size()), 4, "token positions");
  masked_ = make(backend, static_cast<std::int64_t>(masks.size()), 1, "token masks");
  upload_values(backend, stream, context_, contexts);
  upload_values(backend, stream, position_, positions);
  upload_values(backend, stream, masked_, masks);
}

SlotBatches::Step SlotBatches::step(std::int64_t index) const {
  const Place& place = places_.at(static_cast<std::size_t>(index));
  return {context_->as<std::int32_t>() + place.context, position_->as<std::int32_t>() + place.token,
          masked_->as<std::uint8_t>() + place.token, place.tokens};
}

}  // namespace eb::rank
