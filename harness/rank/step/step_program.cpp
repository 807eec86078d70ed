#include "harness/rank/step/step_program.h"

#include <algorithm>
#include <utility>

namespace eb::rank {
namespace {

using backend::EventId;
using backend::Op;
using backend::OpKind;
using backend::StreamId;

// How long a late lookup keeps its stream busy, after its consumer has read staging without it.
constexpr std::int64_t kLateLookupNs = 2'000'000;
// Share of the backbone stand-in's output that is added to the hidden state: keeps its size over many layers.
constexpr float kBackboneScale = 0.1F;

Op op(OpKind kind, int layer = -1) { return {kind, static_cast<std::int16_t>(layer)}; }

}  // namespace

StepProgram::StepProgram(const StepParts& parts, const StepOptions& options, EventLog& log)
    : parts_(parts), options_(options), log_(log) {
  const auto tables = static_cast<std::size_t>(parts_.shape.tables);
  counts_.lookups.resize(tables);
  lookup_done_.resize(tables);
  sorted_.resize(tables);
  staging_free_.resize(tables);
}

EventId StepProgram::enqueue(const StepInput& step) {
  log_.begin_step(static_cast<std::uint32_t>(step.index));
  start(step);
  log_.mark(parts_.main, EventKind::step_start);
  hash(step);
  ids_ready_ = log_.depend(parts_.main, EventKind::ids_ready);
  if (options_.order == plan::Order::table) sort_ahead(step);
  if (options_.submit == plan::Submit::early)
    for (int table = 0; table < parts_.shape.tables; ++table)
      if (!faulty(step, table, LookupFault::late)) submit_lookup(step, table, ids_ready_);
  for (int layer = 0; layer < parts_.shape.backbone_layers; ++layer) {
    const int table = table_of_layer(parts_.geometry, layer);
    if (table >= 0) consume(step, table);
    backbone(step, layer);
  }
  close_segment();
  first_step_ = false;
  return log_.depend(parts_.main, EventKind::step_done);
}

// Before the step's clock: the initial hidden states, and poison where the step's output is checked.
void StepProgram::start(const StepInput& step) {
  for (const EventId event : std::exchange(late_, {})) parts_.backend.wait(parts_.main, event);
  const StepShape& shape = parts_.shape;
  if (options_.control != nullptr) options_.control->enqueue(parts_.main, log_, step.index, step.tokens.own);
  if (step.poison) poison(step);
  if (step.tokens.padded == 0) return;
  if (options_.graphs && step.tokens.own > 0) {
    const auto slot = static_cast<std::size_t>(step.index % kInFlight);
    parts_.backend.copy(parts_.main, op(OpKind::copy), parts_.buffers.masked[slot]->data(),
                        reinterpret_cast<const std::byte*>(step.batch.masked),
                        static_cast<std::size_t>(step.tokens.own));
  }
  const std::size_t token_bytes = static_cast<std::size_t>(shape.copies) * static_cast<std::size_t>(shape.hidden) * 2;
  const auto offset = static_cast<std::size_t>(StepBuffers::pool_offset(step.absolute));
  parts_.backend.copy(parts_.main, op(OpKind::copy), parts_.buffers.hidden->data(),
                      parts_.buffers.hidden_pool->data() + offset * token_bytes,
                      static_cast<std::size_t>(step.tokens.padded) * token_bytes);
}

// The readers of all these buffers are on the main stream, and their writers were waited for there or (lookups) wait
// for the ids, which come after this.
void StepProgram::poison(const StepInput& step) {
  const auto fill = [&](const BufferPtr& buffer, std::uint8_t value = 0xFF) {
    if (buffer) parts_.backend.fill(parts_.main, op(OpKind::fill), buffer->data(), value, buffer->size());
  };
  for (const TableBuffers& table : parts_.buffers.tables) {
    // Without a lookup staging stays zero.
    if (!parts_.shape.stub) fill(table.staging);
    fill(table.rows);
    fill(table.witness);
  }
  // An id that no table has; 0xFF would be DEAD_ID, the padding that the exchange must write itself.
  const auto slot = static_cast<std::size_t>(step.index % kInFlight);
  fill(parts_.buffers.ids[slot], 0x7F);
  fill(parts_.buffers.ids_exchanged[slot], 0x7F);
  fill(parts_.buffers.exchanged);
  fill(parts_.buffers.group_rows);
  fill(parts_.buffers.gathered);
}

void StepProgram::hash(const StepInput& step) {
  const StepShape& shape = parts_.shape;
  const auto slot = static_cast<std::size_t>(step.index % kInFlight);
  const std::int64_t id_row = std::int64_t{shape.tables} * shape.columns;
  auto* ids = parts_.buffers.ids[slot]->as<std::int32_t>();
  if (step.tokens.slot > step.tokens.own)  // DEAD_ID is -1: all bytes 0xFF
    parts_.backend.fill(parts_.main, op(OpKind::fill), reinterpret_cast<std::byte*>(ids + step.tokens.own * id_row),
                        0xFF, static_cast<std::size_t>((step.tokens.slot - step.tokens.own) * id_row) * 4);
  if (step.tokens.own > 0) {
    kernels::HashArgs args = hash_args(parts_.geometry, parts_.weights.hash_layers, parts_.pad_id);
    args.context = step.batch.context;
    args.position = step.batch.position;
    args.tokens = step.tokens.own;
    args.ids = ids;
    parts_.backend.hash(parts_.main, op(OpKind::hash), args);
  }
  if (parts_.groups.edp && step.tokens.slot > 0)
    all_gather(*parts_.groups.edp, "edp", "ids", op(OpKind::id_exchange), EventKind::id_exchange_start, ids,
               parts_.buffers.ids_exchanged[slot]->data(), step.tokens.slot * id_row * 4);
}

const std::int32_t* StepProgram::lookup_ids(std::int64_t index) const noexcept {
  const auto slot = static_cast<std::size_t>(index % kInFlight);
  return (parts_.shape.edp > 1 ? parts_.buffers.ids_exchanged[slot] : parts_.buffers.ids[slot])->as<std::int32_t>();
}

StreamId StepProgram::prefetch_stream(int table) const {
  return parts_.prefetch[options_.streams == plan::Streams::fifo ? 0 : static_cast<std::size_t>(table)];
}

bool StepProgram::faulty(const StepInput& step, int table, LookupFault kind) const noexcept {
  return options_.fault == kind && table == 0 && step.index >= options_.fault_step;
}

kernels::LookupArgs StepProgram::lookup_args(const StepInput& step, int table) const {
  const StepShape& shape = parts_.shape;
  const auto place = static_cast<std::size_t>(table);
  kernels::LookupArgs args;
  args.table = parts_.tables[place];
  args.ids = lookup_ids(step.index);
  args.id_token_stride = std::int64_t{shape.tables} * shape.columns;
  args.id_offset = std::int64_t{table} * shape.columns + shape.first_column;
  args.tokens = step.tokens.lookup;
  args.columns = shape.shard_columns;
  args.heads = shape.part;
  args.staging = parts_.buffers.tables[place].staging->as<Bf16>();
  return args;
}

// All tables' rows, once the ids are there, on a stream of its own: a sort needs no more than a part of the device, so
// it runs beside an earlier lookup, or before the release that a later one waits for.
void StepProgram::sort_ahead(const StepInput& step) {
  if (parts_.shape.stub || step.tokens.lookup == 0) return;
  const StreamId stream = parts_.sort.value();
  parts_.backend.wait(stream, ids_ready_);
  for (int table = 0; table < parts_.shape.tables; ++table) {
    const auto place = static_cast<std::size_t>(table);
    if (!first_step_) parts_.backend.wait(stream, lookup_done_[place]);  // which read the order before
    parts_.backend.sort_rows(stream, op(OpKind::sort, layer_of(table)), lookup_args(step, table),
                             parts_.buffers.tables[place].order->as<std::int32_t>());
    sorted_[place] = log_.depend_unnamed(stream);
  }
}

void StepProgram::submit_lookup(const StepInput& step, int table, EventId after) {
  const StepShape& shape = parts_.shape;
  backend::Backend& backend = parts_.backend;
  const auto place = static_cast<std::size_t>(table);
  const int layer = layer_of(table);
  const StreamId stream = prefetch_stream(table);
  backend.wait(stream, after);
  if (after != ids_ready_) backend.wait(stream, ids_ready_);
  if (!first_step_) backend.wait(stream, staging_free_[place]);
  if (faulty(step, table, LookupFault::late)) backend.busy(stream, op(OpKind::inject, layer), kLateLookupNs);
  log_.mark(stream, EventKind::lookup_start, layer);
  if (!shape.stub && step.tokens.lookup > 0 && !faulty(step, table, LookupFault::skip)) {
    kernels::LookupArgs args = lookup_args(step, table);
    if (options_.order == plan::Order::table) {
      backend.wait(stream, sorted_[place]);  // behind the start: what is left of the sort is the lookup's time
      args.order = parts_.buffers.tables[place].order->as<std::int32_t>();
    }
    const std::int64_t grid = backend.lookup(stream, op(OpKind::lookup, layer), args, options_.grid_cap);
    LookupCounts& counts = counts_.lookups[place];
    counts.rows += args.rows();
    if (args.rows() > counts.rows_per_step_max) counts.largest = args;
    counts.rows_per_step_max = std::max(counts.rows_per_step_max, args.rows());
    counts.tiles_max = std::max(counts.tiles_max, args.tiles());
    counts.grid_max = std::max(counts.grid_max, grid);
  }
  inject(stream, options_.injection.lookup_ns, layer);
  lookup_done_[place] = log_.depend(stream, EventKind::lookup_done, layer);
}

void StepProgram::inject(StreamId stream, const std::map<int, std::int64_t>& extra, int layer) {
  const auto found = extra.find(layer);
  if (found != extra.end()) parts_.backend.busy(stream, op(OpKind::inject, layer), found->second);
}

void StepProgram::consume(const StepInput& step, int table) {
  const auto place = static_cast<std::size_t>(table);
  const int layer = layer_of(table);
  const bool late = faulty(step, table, LookupFault::late);
  close_segment();
  // Ahead of the release: a wait that begins with the release counts from there, however long this stream is kept from
  // going on behind it.
  log_.mark(parts_.main, EventKind::consumer_arrival, layer);
  if (options_.submit == plan::Submit::at_consume) {
    // A stream can only wait for what was recorded before, so the lookup is enqueued here, behind its release and ahead
    // of this stream's own wait. On the device it starts when the main stream arrives, however far ahead the host is.
    const EventId release = log_.depend(parts_.main, EventKind::release, layer);
    if (!late) submit_lookup(step, table, release);
  }
  if (!late) parts_.backend.wait(parts_.main, lookup_done_[place]);
  log_.mark(parts_.main, EventKind::consumer_resumed, layer);
  if (step.poison) keep_witness(step, table);
  bring_rows(step, table);
  project(step, table);
  if (late) {
    // Behind its own consumer, so that the fault does not depend on how fast the machine is.
    submit_lookup(step, table, staging_free_[place]);
    late_.push_back(lookup_done_[place]);
  }
  apply_gate(step, table);
}

void StepProgram::keep_witness(const StepInput& step, int table) {
  const TableBuffers& buffers = parts_.buffers.tables[static_cast<std::size_t>(table)];
  if (!buffers.witness || step.tokens.window == 0) return;
  kernels::SelectArgs args;
  args.src = buffers.staging->data();
  args.dst = buffers.witness->data();
  args.token_stride = std::int64_t{parts_.shape.dim} * 2;
  args.piece_bytes = args.dst_row_bytes = kWitness * 2;
  args.tokens = args.valid_tokens = step.tokens.window * parts_.shape.columns;
  parts_.backend.select(parts_.main, op(OpKind::copy, layer_of(table)), args);
}

// Own rows of all columns: the DP exchange's rows of own tokens, then the heads of all TP ranks.
void StepProgram::bring_rows(const StepInput& step, int table) {
  const StepShape& shape = parts_.shape;
  const StepBuffers& buffers = parts_.buffers;
  const auto place = static_cast<std::size_t>(table);
  const int layer = layer_of(table);
  const std::int64_t piece = std::int64_t{shape.part} * shape.dim * 2;  // bytes of one rank's heads of a token
  const std::int64_t group_piece = piece * shape.edp;
  const std::int64_t row_bytes = shape.row_width() * 2;
  const std::byte* source = buffers.tables[place].staging->data();
  if (parts_.groups.edp && step.tokens.slot > 0) {
    all_gather(*parts_.groups.edp, "edp", "rows", op(OpKind::row_exchange, layer), EventKind::row_exchange_start,
               source, buffers.exchanged->data(), step.tokens.lookup * piece);
    staging_free_[place] = log_.depend_unnamed(parts_.main);
    // Shards are numbered TP-major: the EDP ranks' heads side by side are the TP rank's columns in order.
    kernels::SelectArgs own;
    own.src = buffers.exchanged->data();
    own.dst = (shape.tp > 1 ? buffers.group_rows : buffers.tables[place].rows)->data();
    own.sources = shape.edp;
    own.source_stride = step.tokens.lookup * piece;
    own.token_stride = piece;
    own.piece_bytes = piece;
    own.first_token = shape.edp_rank * step.tokens.slot;
    own.tokens = own.valid_tokens = step.tokens.own;
    own.dst_row_bytes = shape.tp > 1 ? group_piece : row_bytes;
    if (own.tokens > 0) parts_.backend.select(parts_.main, op(OpKind::row_select, layer), own);
    source = buffers.group_rows ? buffers.group_rows->data() : nullptr;
  }
  if (parts_.groups.tp && step.tokens.own > 0) {
    all_gather(*parts_.groups.tp, "tp", "heads", op(OpKind::gather, layer), EventKind::gather_start, source,
               buffers.gathered->data(), step.tokens.own * group_piece);
    if (!parts_.groups.edp) staging_free_[place] = log_.depend_unnamed(parts_.main);
    // Without SP the window is all tokens: the gather along heads. With SP it is the own window, all heads.
    kernels::SelectArgs window;
    window.src = buffers.gathered->data();
    window.dst = buffers.tables[place].rows->data();
    window.sources = shape.tp;
    window.source_stride = step.tokens.own * group_piece;
    window.token_stride = group_piece;
    window.piece_bytes = group_piece;
    window.first_token = step.tokens.window_first;
    window.valid_tokens = step.tokens.window_valid;
    window.tokens = step.tokens.window;
    window.dst_row_bytes = row_bytes;
    parts_.backend.select(parts_.main, op(OpKind::gather_select, layer), window);
  }
  // Nothing read staging (no tokens), or wkv will, which records after itself.
  const bool exchanged = parts_.groups.edp && step.tokens.slot > 0;
  const bool gathered = parts_.groups.tp && step.tokens.own > 0;
  if (!exchanged && !gathered) staging_free_[place] = log_.depend_unnamed(parts_.main);
}

const Bf16* StepProgram::gathered_rows(int table) const noexcept {
  const TableBuffers& buffers = parts_.buffers.tables[static_cast<std::size_t>(table)];
  return (parts_.shape.rows_in_staging() ? buffers.staging : buffers.rows)->as<Bf16>();
}

const Bf16* StepProgram::witness(int table) const noexcept {
  const BufferPtr& buffer = parts_.buffers.tables[static_cast<std::size_t>(table)].witness;
  return buffer ? buffer->as<Bf16>() : nullptr;
}

void StepProgram::project(const StepInput& step, int table) {
  const StepShape& shape = parts_.shape;
  const StepBuffers& buffers = parts_.buffers;
  const auto place = static_cast<std::size_t>(table);
  const int layer = layer_of(table);
  const bool split = shape.tp > 1 && !shape.sequence_parallel;
  open_segment(step, layer, Piece::wkv);
  log_.mark(parts_.main, EventKind::wkv_start, layer);
  if (step.tokens.window > 0) {
    backend::LinearArgs args;
    args.x = gathered_rows(table);
    args.ldx = shape.row_width();
    args.w = parts_.weights.wkv[place].get();
    args.y = (split ? buffers.kv_own : buffers.kv)->as<Bf16>();
    args.ldy = shape.kv_part;
    args.m = step.tokens.window;
    parts_.backend.linear(parts_.main, op(OpKind::wkv, layer), args);
  }
  log_.mark(parts_.main, EventKind::wkv_done, layer);
  close_segment();
  const bool gathers = split && step.tokens.own > 0;
  if (shape.rows_in_staging()) staging_free_[place] = log_.depend_unnamed(parts_.main);
  if (!gathers) return;
  const std::int64_t piece = shape.kv_part * 2;
  all_gather(*parts_.groups.tp, "tp", "wkv_output", op(OpKind::wkv_gather, layer), EventKind::wkv_gather_start,
             buffers.kv_own->data(), buffers.kv_gathered->data(), step.tokens.own * piece);
  // Goes on into the gate, unless something comes between.
  if (step.capture == nullptr && !faulty(step, table, LookupFault::late)) {
    open_segment(step, layer, Piece::wkv_gathered);
  }
  kernels::SelectArgs select;
  select.src = buffers.kv_gathered->data();
  select.dst = buffers.kv->data();
  select.sources = shape.tp;
  select.source_stride = step.tokens.own * piece;
  select.token_stride = piece;
  select.piece_bytes = piece;
  select.tokens = select.valid_tokens = step.tokens.own;
  select.dst_row_bytes = shape.kv_width * 2;
  parts_.backend.select(parts_.main, op(OpKind::wkv_select, layer), select);
}

void StepProgram::apply_gate(const StepInput& step, int table) {
  const StepShape& shape = parts_.shape;
  const auto place = static_cast<std::size_t>(table);
  const int layer = layer_of(table);
  if (step.capture) {
    capture(step, table, step.capture->before);
  } else {
    open_segment(step, layer, Piece::gate);
  }
  if (step.tokens.window_valid > 0) {
    kernels::GateArgs args;
    args.hidden = parts_.buffers.hidden->as<Bf16>() + step.tokens.window_first * shape.copies * shape.hidden;
    args.kv = parts_.buffers.kv->as<Bf16>();
    args.q = parts_.weights.q[place]->as<Bf16>();
    args.k = parts_.weights.k[place]->as<Bf16>();
    const std::uint8_t* masked =
        options_.graphs ? parts_.buffers.masked[static_cast<std::size_t>(step.index % kInFlight)]->as<std::uint8_t>()
                        : step.batch.masked;
    args.masked = masked + step.tokens.window_first;
    args.tokens = step.tokens.window_valid;
    args.copies = shape.copies;
    args.dim = shape.hidden;
    args.eps = static_cast<float>(parts_.geometry.model.rms_eps);
    parts_.backend.gate(parts_.main, op(OpKind::gate, layer), args);
  }
  log_.mark(parts_.main, EventKind::gate_done, layer);
  if (step.capture) capture(step, table, step.capture->after);
}

void StepProgram::capture(const StepInput& step, int table, const std::vector<BufferPtr>& hidden) {
  const StepShape& shape = parts_.shape;
  const auto place = static_cast<std::size_t>(table);
  const int layer = layer_of(table);
  const std::size_t hidden_bytes = static_cast<std::size_t>(shape.copies) * static_cast<std::size_t>(shape.hidden) * 2;
  const std::size_t kv_bytes = static_cast<std::size_t>(shape.kv_width) * 2;
  for (std::size_t i = 0; i < step.capture->tokens.size(); ++i) {
    const auto token = static_cast<std::size_t>(step.capture->tokens[i]);
    const auto row = token + static_cast<std::size_t>(step.tokens.window_first);
    parts_.backend.copy(parts_.main, op(OpKind::copy, layer), hidden[place]->data() + i * hidden_bytes,
                        parts_.buffers.hidden->data() + row * hidden_bytes, hidden_bytes);
    parts_.backend.copy(parts_.main, op(OpKind::copy, layer), step.capture->kv[place]->data() + i * kv_bytes,
                        parts_.buffers.kv->data() + token * kv_bytes, kv_bytes);
  }
}

void StepProgram::backbone(const StepInput& step, int layer) {
  const StepShape& shape = parts_.shape;
  const auto place = static_cast<std::size_t>(layer);
  open_segment(step, layer, Piece::backbone);
  log_.mark(parts_.main, EventKind::backbone_start, layer);
  if (shape.backbone_n > 0 && step.tokens.padded > 0) {
    const std::int64_t stride = std::int64_t{shape.copies} * shape.hidden;
    auto* copy = parts_.buffers.hidden->as<Bf16>() + std::int64_t{layer % shape.copies} * shape.hidden;
    auto* inner = parts_.buffers.inner->as<Bf16>();
    backend::LinearArgs up{copy, stride, parts_.weights.up[place].get(), inner, shape.backbone_n, step.tokens.padded,
                           0};
    backend::LinearArgs down{
        inner, shape.backbone_n, parts_.weights.down[place].get(), copy, stride, step.tokens.padded, kBackboneScale};
    for (int i = 0; i < shape.backbone_repeats; ++i) {
      parts_.backend.linear(parts_.main, op(OpKind::backbone, layer), up);
      parts_.backend.linear(parts_.main, op(OpKind::backbone, layer), down);
    }
  }
  inject(parts_.main, options_.injection.front_ns, layer);
  const std::int64_t message = parts_.groups.ep ? expert_message_bytes(shape, step.tokens.expert) : 0;
  if (message > 0) {
    close_segment();
    log_.mark(parts_.main, EventKind::expert_start, layer);
    parts_.groups.ep->all_to_all(parts_.main, op(OpKind::expert_exchange, layer), parts_.buffers.expert_send->data(),
                                 parts_.buffers.expert_recv->data(), static_cast<std::size_t>(message));
    log_.mark(parts_.main, EventKind::expert_done, layer);
    CollectiveCounts& counts = counts_.collectives[{"expert", "ep", layer}];
    ++counts.calls;
    counts.bytes += message * (shape.ep - 1);
    open_segment(step, layer, Piece::after_exchange);
  }
  log_.mark(parts_.main, EventKind::backbone_done, layer);
}

void StepProgram::open_segment(const StepInput& step, int layer, Piece piece) {
  if (!options_.graphs || segment_open_) return;
  constexpr int kPieces = 5;
  segment_open_ = true;
  parts_.backend.begin_segment(parts_.main, {step.shape, static_cast<std::uint16_t>(step.index % kInFlight),
                                             static_cast<std::uint16_t>(layer * kPieces + static_cast<int>(piece))});
}

void StepProgram::close_segment() {
  if (!segment_open_) return;
  segment_open_ = false;
  parts_.backend.end_segment(parts_.main);
}

void StepProgram::all_gather(backend::Communicator& group, const char* group_name, const char* object, Op op,
                             EventKind start, const void* send, void* recv, std::int64_t bytes) {
  const auto done = static_cast<EventKind>(static_cast<std::uint16_t>(start) + 1);  // kinds come in pairs
  log_.mark(parts_.main, start, op.layer);
  if (start == EventKind::gather_start) inject(parts_.main, options_.injection.gather_ns, op.layer);
  group.all_gather(parts_.main, op, static_cast<const std::byte*>(send), static_cast<std::byte*>(recv),
                   static_cast<std::size_t>(bytes));
  log_.mark(parts_.main, done, op.layer);
  CollectiveCounts& counts = counts_.collectives[{object, group_name, op.layer}];
  ++counts.calls;
  counts.bytes += bytes * (group.size() - 1);
}

}  // namespace eb::rank
