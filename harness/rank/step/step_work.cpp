#include "harness/rank/step/step_work.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "harness/base/error.h"
#include "harness/base/sha256.h"

namespace eb::rank {
namespace {

using backend::Backend;
using backend::EventId;

std::unique_ptr<backend::Communicator> open_group(Backend& backend, const plan::RunLayout& layout,
                                                  const std::string& name, int rank) {
  for (backend::GroupSpec& group : run_groups(layout)) {
    if (group.name != name) continue;
    for (std::size_t i = 0; i < group.ranks.size(); ++i) {
      if (group.ranks[i] != rank) continue;
      group.index = static_cast<int>(i);
      return backend.communicator(group);
    }
  }
  return nullptr;
}

Communicators open_groups(const SlotShared& shared) {
  Communicators groups;
  const plan::RunLayout& layout = *shared.input.layout;
  groups.tp = open_group(shared.backend, layout, "tp", shared.input.rank);
  if (shared.shape.dp_sharded) groups.edp = open_group(shared.backend, layout, "edp", shared.input.rank);
  groups.ep = open_group(shared.backend, layout, "ep", shared.input.rank);
  return groups;
}

}  // namespace

StepWork::StepWork(SlotShared& shared)
    : shared_(shared),
      backend_(shared.backend),
      groups_(open_groups(shared)),
      weights_(shared.backend, shared.shape, shared.geometry, *shared.input.reference, shared.input.scenario->seed,
               shared.main) {}

std::int64_t StepWork::prepare(const control::RunSlot& slot, const plan::Scenario& arm, EventLog& log) {
  slot_ = slot;
  arm_ = arm;
  shared_.use_tokens(arm);
  const replay::BatchSource source(arm, shared_.tokens, shared_.shape.replica);
  batches_.emplace(backend_, shared_.main, source, slot.first_step, slot.steps);
  count_steps();
  const std::size_t streams =
      arm.prefetch.streams == plan::Streams::fifo ? 1 : static_cast<std::size_t>(shared_.shape.tables);
  const bool sorts = arm.prefetch.order == plan::Order::table;
  shared_.use_streams(streams, sorts);
  totals_.instrument = shared_.input.instrument;
  totals_.grid_cap = arm.prefetch.grid_cap.programs(backend_.device().units);
  totals_.threads = shared_.threads(streams + (sorts ? 1 : 0));
  program_.emplace(StepParts{backend_, shared_.shape, shared_.geometry, shared_.pad_id, shared_.input.tables, *buffers_,
                             weights_, groups_, shared_.main, shared_.prefetch, shared_.sort},
                   options(), log);
  capture_.reset();
  if (slot.check_hidden) capture_.emplace(make_capture(step_list_.back().window_valid));
  return slot.steps;
}

// Token counts of all steps, and buffers large enough for them.
void StepWork::count_steps() {
  StepLimits limits;
  totals_ = {};
  step_list_.clear();
  for (std::int64_t i = 0; i < slot_.steps; ++i) {
    const StepTokens step = step_tokens(shared_.shape, arm_.workload, slot_.first_step + i);
    if (step.own != batches_->step(i).tokens)
      fail(Exit::failure, "step {}: the batch has {} tokens, the plan says {}", slot_.first_step + i,
           batches_->step(i).tokens, step.own);
    limits.cover(step);
    step_list_.push_back(step);
    totals_.own_tokens += step.own;
    totals_.slot_tokens += step.slot;
    for (const int replica : shared_.shape.edp_replicas)
      totals_.group_tokens += arm_.workload.step_tokens(replica, slot_.first_step + i);
  }
  totals_.steps = slot_.steps;
  if (buffers_ && limits.fits_in(buffers_->limits)) return;
  if (buffers_) limits.cover(buffers_->limits.most);
  program_.reset();
  backend_.drop_segments();
  buffers_.reset();
  buffers_.emplace(backend_, shared_.shape, limits, shared_.input.scenario->seed, shared_.main);
}

StepOptions StepWork::options() {
  StepOptions options;
  if (!slot_.inject_stage.empty())
    options.injection =
        shared_.stage_times.injection(slot_.inject_stage, slot_.inject_percent, shared_.geometry.layers.back().layer);
  std::int64_t most = 0;
  for (const StepTokens& step : step_list_) most = std::max(most, step.own);
  options.control = shared_.control_for(slot_, most);
  options.submit = arm_.prefetch.submit;
  options.streams = arm_.prefetch.streams;
  options.order = arm_.prefetch.order;
  options.grid_cap = totals_.grid_cap;
  options.graphs = arm_.prefetch.graph == "piecewise";
  const plan::Fault& fault = shared_.input.scenario->fault;
  if (fault.rank == shared_.input.rank) {
    if (fault.kind == "skip_lookup") options.fault = LookupFault::skip;
    if (fault.kind == "late_lookup") options.fault = LookupFault::late;
    options.fault_step = fault.step;
  }
  return options;
}

EventId StepWork::enqueue(std::int64_t index) {
  StepInput step;
  step.index = index;
  step.absolute = slot_.first_step + index;
  step.tokens = step_list_[static_cast<std::size_t>(index)];
  step.shape = shape_number(step.tokens);
  step.batch = batches_->step(index);
  const bool last = index + 1 == slot_.steps;
  step.poison = last && slot_.check;
  step.capture = last && capture_ ? &*capture_ : nullptr;
  return program_->enqueue(step);
}

std::uint32_t StepWork::shape_number(const StepTokens& t) {
  const std::array<std::int64_t, 8> key = {t.own,          t.slot,         t.lookup, t.window,
                                           t.window_first, t.window_valid, t.padded, t.expert};
  return shapes_.try_emplace(key, static_cast<std::uint32_t>(shapes_.size())).first->second;
}

HiddenCapture StepWork::make_capture(std::int64_t valid) {
  HiddenCapture capture;
  capture.tokens = sample_tokens(valid);
  const std::size_t count = std::max<std::size_t>(1, capture.tokens.size());
  const std::size_t hidden =
      count * static_cast<std::size_t>(shared_.shape.copies) * static_cast<std::size_t>(shared_.shape.hidden) * 2;
  for (int table = 0; table < shared_.shape.tables; ++table) {
    capture.before.push_back(backend_.allocate(hidden, backend::MemoryKind::device, "hidden before the gate"));
    capture.after.push_back(backend_.allocate(hidden, backend::MemoryKind::device, "hidden after the gate"));
    capture.kv.push_back(backend_.allocate(count * static_cast<std::size_t>(shared_.shape.kv_width) * 2,
                                           backend::MemoryKind::device, "kv of sampled tokens"));
  }
  return capture;
}

HiddenSamples StepWork::samples(const HiddenCapture& capture) {
  HiddenSamples out;
  out.tokens = capture.tokens;
  const auto values = [&](const BufferPtr& buffer) {
    return download_values(backend_, shared_.main, buffer->as<Bf16>(), static_cast<std::int64_t>(buffer->size() / 2));
  };
  for (std::size_t table = 0; table < capture.kv.size(); ++table) {
    out.before.push_back(values(capture.before[table]));
    out.kv.push_back(values(capture.kv[table]));
    out.after.push_back(values(capture.after[table]));
  }
  return out;
}

// What the last step left; `all`: also rows and hidden states, for a check.
StepOutput StepWork::output(bool all) {
  StepOutput out;
  const std::int64_t last = slot_.steps - 1;
  const bool poisoned = slot_.check;
  out.tokens = step_list_.back();
  out.masked = batches_->last().masked;
  out.ids = download_values(backend_, shared_.main, program_->lookup_ids(last),
                            out.tokens.lookup * shared_.shape.tables * shared_.shape.columns);
  if (!all) return out;
  for (int table = 0; table < shared_.shape.tables; ++table)
    out.rows.push_back(download_values(backend_, shared_.main, program_->gathered_rows(table),
                                       out.tokens.window * shared_.shape.row_width()));
  if (poisoned && shared_.shape.rows_in_staging())
    for (int table = 0; table < shared_.shape.tables; ++table)
      out.witness.push_back(download_values(backend_, shared_.main, program_->witness(table),
                                            out.tokens.window * shared_.shape.columns * kWitness));
  const std::int64_t token_size = std::int64_t{shared_.shape.copies} * shared_.shape.hidden;
  out.hidden =
      download_values(backend_, shared_.main, buffers_->hidden->as<Bf16>() + out.tokens.window_first * token_size,
                      out.tokens.window_valid * token_size);
  return out;
}

CheckFacts StepWork::check(const StepOutput& out) {
  CheckFacts facts;
  std::vector<replay::StepBatch> group;
  for (const int replica : shared_.shape.edp_replicas)
    group.push_back(replay::BatchSource(arm_, shared_.tokens, replica).step(slot_.first_step + slot_.steps - 1));
  check_ids(shared_.shape, shared_.geometry, out, group, shared_.pad_id, facts);
  check_rows(shared_.shape, shared_.geometry, *shared_.input.reference, out, facts);
  if (capture_) check_hidden(shared_.shape, shared_.geometry, *shared_.input.reference, out, samples(*capture_), facts);
  facts.hidden_sha256 = sha256_hex(std::as_bytes(std::span(out.hidden)));
  return facts;
}

void StepWork::finish(const HostWork& host, SlotResult& result) {
  totals_.host = host;
  const bool checked = slot_.check || slot_.check_hidden;
  const StepOutput out = output(checked);
  std::optional<CheckFacts> facts;
  if (checked) facts = check(out);
  const StepShape& shape = shared_.shape;
  const auto all = [&](const SlotShared::Visit& visit) {
    std::vector<replay::BatchSource> sources;
    for (const int replica : shape.edp_replicas) sources.emplace_back(arm_, shared_.tokens, replica);
    for (std::int64_t i = 0; i < slot_.steps; ++i)
      for (const replay::BatchSource& source : sources) visit(source.step(slot_.first_step + i));
  };
  const std::vector<Reuse> reuse = shared_.reuse_of(slot_, out.ids, all);
  std::vector<std::optional<backend::LookupResources>> resources;
  for (const LookupCounts& lookup : program_->counts().lookups) {
    resources.push_back(backend_.lookup_resources(lookup.largest, totals_.grid_cap));
  }
  result.facts_json =
      facts_json(shape, shared_.geometry, totals_, program_->counts(), reuse, resources, backend_.device(), facts);
}

}  // namespace eb::rank
