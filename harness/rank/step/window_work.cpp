#include "harness/rank/step/window_work.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "harness/base/error.h"
#include "harness/rank/step/step_check.h"
#include "harness/replay/batch_source.h"

namespace eb::rank {
namespace {

using backend::EventId;
using backend::MemoryKind;
using backend::Op;
using backend::OpKind;

// Launches that the search for a window's length takes its ids from; indices of its own, so that no timed row was read
// before.
constexpr std::int64_t kTrialLaunches = 8;
constexpr std::uint64_t kTrialSeed = 0x77696e646f77U;
constexpr int kTrials = 3;
// Whose output a check looks at. It comes last in its window, so that the rows checked are the same for arms whose
// windows hold different numbers of launches.
constexpr std::int64_t kCheckedLaunch = 0;
// Of the wanted length: a timed window may be a little faster than the trials.
constexpr double kMargin = 1.15;

Op op(OpKind kind, int layer = -1) { return {kind, static_cast<std::int16_t>(layer)}; }

BufferPtr allocate(backend::Backend& backend, std::int64_t count, std::size_t bytes, const char* what) {
  return backend.allocate(std::max<std::size_t>(static_cast<std::size_t>(count) * bytes, 64), MemoryKind::device, what);
}

}  // namespace

std::int64_t WindowWork::prepare(const control::RunSlot& slot, const plan::Scenario& arm, EventLog& log) {
  slot_ = slot;
  arm_ = arm;
  log_ = &log;
  kernel_ = slot.bare ? Kernel::gather : Kernel::lookup;
  // In a run of steps the bare gather has the steps' readers: all ranks.
  reads_ = arm.workload.kind != plan::WorkloadKind::lookup || arm.workload.active_readers.reads(shared_.input.rank);
  counts_ = {};
  counts_.lookups.resize(static_cast<std::size_t>(shared_.shape.tables));
  totals_ = {};
  totals_.instrument = shared_.input.instrument;
  totals_.grid_cap = arm.prefetch.grid_cap.programs(backend_.device().units);
  facts_ = {};
  facts_.bare = slot.bare;
  facts_.reads = reads_;
  windows_.clear();
  launches_ = 0;
  if (!reads_) {
    totals_.threads = 0;  // asleep
    return 0;
  }
  shared_.use_tokens(arm);
  shared_.use_streams(1, false);
  stream_ = shared_.prefetch.front();
  totals_.threads = shared_.threads(1);
  if (!hash_layers_) hash_layers_ = make_hash_layers(backend_, shared_.geometry, shared_.main);
  list_windows();
  launches_ = find_launches();
  facts_.launches = launches_;
  singles_ = slot.timed && !slot.bare ? std::min(slot.steps, kMostSingles) : 0;
  make_ids(arm, windows_, launches_ + (singles_ > 0 ? 1 : 0));
  orders_.reset();
  if (kernel_ == Kernel::gather && arm.prefetch.order == plan::Order::table) sort_ids();
  std::int64_t most = 0;
  for (const Window& window : windows_) most = std::max(most, window.tokens.own);
  control_ = shared_.control_for(slot, most);
  injection_ = {};
  if (!slot.inject_stage.empty())
    injection_ =
        shared_.stage_times.injection(slot.inject_stage, slot.inject_percent, shared_.geometry.layers.back().layer);
  return slot.steps;
}

void WindowWork::list_windows() {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < slot_.steps; ++i) {
    Window window;
    window.absolute = slot_.first_step + i;
    window.tokens = step_tokens(shared_.shape, arm_.workload, window.absolute);
    most = std::max(most, window.tokens.lookup);
    windows_.push_back(window);
  }
  make_room(most);
}

void WindowWork::make_room(std::int64_t tokens) {
  const StepShape& shape = shared_.shape;
  if (tokens <= room_tokens_) return;
  room_tokens_ = tokens;
  const std::int64_t rows = tokens * shape.part;
  staging_.clear();
  order_.clear();
  for (int table = 0; table < shape.tables; ++table) {
    staging_.push_back(allocate(backend_, rows * shape.dim, sizeof(Bf16), "staging"));
    order_.push_back(allocate(backend_, rows, sizeof(std::int32_t), "lookup order"));
  }
  sums_ = allocate(backend_, rows, sizeof(std::uint32_t), "sums of the bare gather");
}

// Launches count up without a gap in the index space of a replica's token streams; the batch shape is the window's.
replay::StepBatch WindowWork::batch(const plan::Scenario& arm, int replica, std::int64_t window,
                                    std::int64_t launch) const {
  const auto cycle = static_cast<std::int64_t>(arm.workload.batches_of(replica).size());
  if (cycle == 0) return {};
  const std::int64_t place = window * (kMostWindowLaunches + 1) + launch;
  return replay::BatchSource(arm, shared_.tokens, replica).step(place * cycle + window % cycle);
}

void WindowWork::make_ids(const plan::Scenario& arm, std::vector<Window>& windows, std::int64_t launches) {
  const StepShape& shape = shared_.shape;
  struct Piece {
    std::size_t context;
    std::size_t position;
    std::int64_t tokens;
    std::int64_t ids;  // where they go
  };
  std::vector<Piece> pieces;
  std::vector<std::int32_t> contexts;
  std::vector<std::int32_t> positions;
  std::int64_t size = 0;
  for (Window& window : windows) {
    window.first_id = size;
    for (std::int64_t launch = 0; launch < launches; ++launch) {
      for (std::size_t member = 0; member < shape.edp_replicas.size(); ++member) {
        const replay::StepBatch one = batch(arm, shape.edp_replicas[member], window.absolute, launch);
        pieces.push_back({contexts.size(), positions.size(), one.tokens(),
                          size + static_cast<std::int64_t>(member) * window.tokens.slot * id_row()});
        contexts.insert(contexts.end(), one.context.begin(), one.context.end());
        positions.insert(positions.end(), one.position.begin(), one.position.end());
      }
      size += window.tokens.lookup * id_row();
    }
  }
  ids_.reset();
  ids_ = allocate(backend_, size, sizeof(std::int32_t), "ids of all launches");
  const BufferPtr context = allocate(backend_, static_cast<std::int64_t>(contexts.size()), 4, "token contexts");
  const BufferPtr position = allocate(backend_, static_cast<std::int64_t>(positions.size()), 4, "token positions");
  upload(backend_, shared_.main, context->data(), std::as_bytes(std::span(contexts)));
  upload(backend_, shared_.main, position->data(), std::as_bytes(std::span(positions)));
  // DEAD_ID is -1: what no token of a smaller replica fills.
  backend_.fill(shared_.main, op(OpKind::fill), ids_->data(), 0xFF, ids_->size());
  kernels::HashArgs args = hash_args(shared_.geometry, hash_layers_, shared_.pad_id);
  for (const Piece& piece : pieces) {
    if (piece.tokens == 0) continue;
    args.context = context->as<std::int32_t>() + piece.context;
    args.position = position->as<std::int32_t>() + piece.position;
    args.tokens = piece.tokens;
    args.ids = ids_->as<std::int32_t>() + piece.ids;
    backend_.hash(shared_.main, op(OpKind::hash), args);
  }
  backend_.synchronize();
}

// Of the bare gather the order is no work of its own: it is there before the first window.
void WindowWork::sort_ids() {
  std::int64_t rows = 0;
  for (Window& window : windows_) {
    window.first_order = rows;
    rows += launches_ * shared_.shape.tables * window.tokens.lookup * shared_.shape.part;
  }
  orders_.reset();
  BufferPtr orders = allocate(backend_, rows, sizeof(std::int32_t), "row orders of all launches");
  for (const Window& window : windows_) {
    std::int32_t* place = orders->as<std::int32_t>() + window.first_order;
    for (std::int64_t launch = 0; launch < launches_; ++launch) {
      for (int table = 0; table < shared_.shape.tables; ++table) {
        const kernels::LookupArgs one = args(window, launch, table);
        if (one.rows() > 0) backend_.sort_rows(stream_, op(OpKind::sort, layer_of(table)), one, place);
        place += one.rows();
      }
    }
  }
  backend_.synchronize();
  orders_ = std::move(orders);
}

kernels::LookupArgs WindowWork::args(const Window& window, std::int64_t launch, int table) const {
  const StepShape& shape = shared_.shape;
  const auto place = static_cast<std::size_t>(table);
  kernels::LookupArgs args;
  args.table = shared_.input.tables[place];
  args.ids = ids_->as<std::int32_t>() + window.first_id + launch * window.tokens.lookup * id_row();
  args.id_token_stride = id_row();
  args.id_offset = std::int64_t{table} * shape.columns + shape.first_column;
  args.tokens = window.tokens.lookup;
  args.columns = shape.shard_columns;
  args.heads = shape.part;
  args.staging = staging_[place]->as<Bf16>();
  return args;
}

void WindowWork::launch(const Window& window, std::int64_t launch, int table) {
  kernels::LookupArgs lookup = args(window, launch, table);
  if (lookup.rows() == 0) return;
  const auto place = static_cast<std::size_t>(table);
  const int layer = layer_of(table);
  if (kernel_ == Kernel::gather) {
    if (orders_) {
      lookup.order =
          orders_->as<std::int32_t>() + window.first_order + (launch * shared_.shape.tables + table) * lookup.rows();
    }
    last_grid_ = backend_.gather_rows(stream_, op(OpKind::gather_rows, layer), {lookup, sums_->as<std::uint32_t>()},
                                      totals_.grid_cap);
    return;
  }
  if (arm_.prefetch.order == plan::Order::table) {
    auto* order = order_[place]->as<std::int32_t>();
    backend_.sort_rows(stream_, op(OpKind::sort, layer), lookup, order);
    lookup.order = order;
  }
  last_grid_ = backend_.lookup(stream_, op(OpKind::lookup, layer), lookup, totals_.grid_cap);
}

// The shortest of a few windows of `launches` launches, over all tables, in ns of the device.
std::int64_t WindowWork::shortest_window(const Window& window, std::int64_t launches) {
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<EventId> marks;
    const auto mark = [&] {
      marks.push_back(backend_.new_event());
      backend_.record(stream_, marks.back());
    };
    mark();
    for (int table = 0; table < shared_.shape.tables; ++table) {
      for (std::int64_t i = 0; i < launches; ++i) launch(window, i % kTrialLaunches, table);
      mark();
    }
    backend_.synchronize();
    for (std::size_t i = 1; i < marks.size(); ++i) {
      shortest = std::min(shortest, backend_.times(marks[i]).device_ns - backend_.times(marks[i - 1]).device_ns);
    }
    backend_.reset_events();
  }
  return shortest;
}

// As many launches as a window of kWindowNs takes, of the smallest batch of the slot.
std::int64_t WindowWork::find_launches() {
  if (arm_.workload.window_launches > 0) return arm_.workload.window_launches;
  const Window* smallest = nullptr;
  for (const Window& window : windows_) {
    if (window.tokens.lookup == 0) continue;
    if (smallest == nullptr || window.tokens.lookup < smallest->tokens.lookup) smallest = &window;
  }
  if (smallest == nullptr) return 1;
  const auto key = std::tuple(kernel_, smallest->tokens.lookup, totals_.grid_cap, arm_.prefetch.order);
  if (const auto known = known_launches_.find(key); known != known_launches_.end()) return known->second;
  plan::Scenario other = arm_;
  other.seed ^= kTrialSeed;
  std::vector<Window> trial = {*smallest};
  orders_.reset();
  make_ids(other, trial, kTrialLaunches);
  std::int64_t launches = 1;
  for (;;) {
    const std::int64_t length = std::max<std::int64_t>(1, shortest_window(trial.front(), launches));
    if (length >= kWindowNs || launches == kMostWindowLaunches) break;
    const double factor = kMargin * static_cast<double>(kWindowNs) / static_cast<double>(length);
    launches = std::clamp(static_cast<std::int64_t>(std::ceil(static_cast<double>(launches) * factor)), launches + 1,
                          kMostWindowLaunches);
  }
  known_launches_[key] = launches;
  return launches;
}

// Ahead of the windows, so that these follow each other without a gap: negative controls, and lone launches, each on an
// idle stream.
void WindowWork::before_windows() {
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    log_->begin_step(static_cast<std::uint32_t>(i));
    if (control_ != nullptr) control_->enqueue(stream_, *log_, static_cast<std::int64_t>(i), windows_[i].tokens.own);
    if (static_cast<std::int64_t>(i) >= singles_ || windows_[i].tokens.lookup == 0) continue;
    backend_.synchronize();
    for (int table = 0; table < shared_.shape.tables; ++table) {
      log_->mark(stream_, EventKind::launch_start, layer_of(table));
      launch(windows_[i], launches_, table);
      backend_.host_wait(log_->depend(stream_, EventKind::launch_done, layer_of(table)));
    }
  }
}

EventId WindowWork::enqueue(std::int64_t index) {
  if (index == 0) before_windows();
  const bool lookup = kernel_ == Kernel::lookup;
  const Window& window = windows_[static_cast<std::size_t>(index)];
  log_->begin_step(static_cast<std::uint32_t>(index));
  if (lookup && slot_.check && index + 1 == slot_.steps) {
    for (const BufferPtr& staging : staging_)
      backend_.fill(stream_, op(OpKind::fill), staging->data(), 0xFF, staging->size());
  }
  if (lookup) log_->mark(stream_, EventKind::step_start);
  const plan::Fault& fault = shared_.input.scenario->fault;
  for (int table = 0; table < shared_.shape.tables; ++table) {
    const int layer = layer_of(table);
    const bool skipped =
        fault.kind == "skip_lookup" && fault.rank == shared_.input.rank && table == 0 && index >= fault.step && lookup;
    log_->mark(stream_, lookup ? EventKind::lookup_start : EventKind::bare_start, layer);
    for (std::int64_t i = launches_ - 1; i >= kCheckedLaunch && !skipped; --i) launch(window, i, table);
    if (const auto extra = injection_.lookup_ns.find(layer); extra != injection_.lookup_ns.end())
      backend_.busy(stream_, op(OpKind::inject, layer), extra->second);
    log_->mark(stream_, lookup ? EventKind::lookup_done : EventKind::bare_done, layer);
    if (!skipped) count(window, table);
  }
  const StepTokens& tokens = window.tokens;
  totals_.own_tokens += tokens.own * launches_;
  totals_.slot_tokens += tokens.slot * launches_;
  for (const int replica : shared_.shape.edp_replicas)
    totals_.group_tokens += arm_.workload.step_tokens(replica, window.absolute) * launches_;
  ++totals_.steps;
  return lookup ? log_->depend(stream_, EventKind::step_done) : log_->depend_unnamed(stream_);
}

void WindowWork::count(const Window& window, int table) {
  const kernels::LookupArgs one = args(window, kCheckedLaunch, table);
  LookupCounts& counts = counts_.lookups[static_cast<std::size_t>(table)];
  if (one.rows() == 0) return;
  counts.rows += one.rows() * launches_;
  if (one.rows() > counts.rows_per_step_max) counts.largest = one;
  counts.rows_per_step_max = std::max(counts.rows_per_step_max, one.rows());
  counts.tiles_max = std::max(counts.tiles_max, one.tiles());
  counts.grid_max = std::max(counts.grid_max, last_grid_);
}

// A window that the clock cannot tell from nothing is an error; one below the wanted length is counted.
void WindowWork::check_lengths(const SlotResult& result) {
  const EventKind start = kernel_ == Kernel::lookup ? EventKind::lookup_start : EventKind::bare_start;
  const EventKind done = kernel_ == Kernel::lookup ? EventKind::lookup_done : EventKind::bare_done;
  const std::int64_t tick = backend_.device().clock_tick_ns;
  std::int64_t started = 0;
  for (const EventRecord& event : result.events) {  // on one stream: a start is followed by its end
    if (event.clock != static_cast<std::uint8_t>(Clock::device)) continue;
    if (event.kind == static_cast<std::uint16_t>(start)) started = event.time_ns;
    if (event.kind != static_cast<std::uint16_t>(done)) continue;
    if (windows_[event.step].tokens.lookup == 0) continue;
    const std::int64_t length = event.time_ns - started;
    if (length < kWindowNs) ++facts_.short_windows;
    if (length < kLeastTicks * tick) {
      fail(Exit::failure,
           "layer {}, window {}: {} launches took {} ns, below {} ticks of the device's clock ({} ns each): raise "
           "workload.window_launches, or leave it 0",
           event.layer, event.step, launches_, length, kLeastTicks, tick);
    }
  }
}

CheckFacts WindowWork::check(std::vector<std::int32_t> ids) {
  const StepShape& shape = shared_.shape;
  const Window& window = windows_.back();
  StepOutput output;
  output.tokens = window.tokens;
  output.ids = std::move(ids);
  std::vector<replay::StepBatch> group;
  for (const int replica : shape.edp_replicas) group.push_back(batch(arm_, replica, window.absolute, kCheckedLaunch));
  CheckFacts facts;
  check_ids(shape, shared_.geometry, output, group, shared_.pad_id, facts);
  std::vector<std::vector<Bf16>> staging;
  for (const BufferPtr& one : staging_)
    staging.push_back(
        download_values(backend_, stream_, one->as<Bf16>(), window.tokens.lookup * shape.part * shape.dim));
  check_shard_rows(shape, shared_.geometry,
                   shared_.input.layout->ranks[static_cast<std::size_t>(shared_.input.rank)].shard,
                   *shared_.input.reference, output, staging, facts);
  return facts;
}

void WindowWork::finish(const HostWork& host, SlotResult& result) {
  totals_.host = host;
  result.window_launches = launches_;
  std::optional<CheckFacts> checks;
  std::vector<Reuse> reuse(static_cast<std::size_t>(shared_.shape.tables));
  std::vector<std::optional<backend::LookupResources>> resources;
  if (reads_) {
    const Window& last = windows_.back();
    std::vector<std::int32_t> ids =
        download_values(backend_, stream_, args(last, kCheckedLaunch, 0).ids, last.tokens.lookup * id_row());
    const auto all = [&](const SlotShared::Visit& visit) {
      for (const Window& window : windows_)
        for (std::int64_t launch = 0; launch < launches_; ++launch)
          for (const int replica : shared_.shape.edp_replicas) visit(batch(arm_, replica, window.absolute, launch));
    };
    reuse = shared_.reuse_of(slot_, ids, all);
    for (const LookupCounts& lookup : counts_.lookups)
      resources.push_back(backend_.lookup_resources(lookup.largest, totals_.grid_cap));
    if (slot_.check) checks = check(std::move(ids));
  } else if (slot_.check) {
    checks.emplace();  // an idle rank has nothing that could be wrong
    checks->rows_compared = 0;
  }
  // Behind the check: a lookup that did not run is wrong rows first, and a short window second.
  if (slot_.timed && reads_) check_lengths(result);
  result.facts_json = facts_json(shared_.shape, shared_.geometry, totals_, counts_, reuse, resources, backend_.device(),
                                 checks, &facts_);
}

}  // namespace eb::rank
