#include "harness/rank/step/step_runner.h"

#include <unistd.h>
#include <csignal>
#include <cstring>

#include <array>
#include <map>
#include <optional>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"
#include "harness/rank/step/control_gather.h"
#include "harness/rank/step/injection.h"
#include "harness/rank/step/step_buffers.h"
#include "harness/rank/step/step_check.h"
#include "harness/rank/step/step_events.h"
#include "harness/rank/step/step_facts.h"
#include "harness/rank/step/step_program.h"
#include "harness/rank/step/step_shape.h"
#include "harness/replay/batch_source.h"
#include "harness/replay/token_model.h"

namespace eb::rank {
namespace {

using backend::Backend;
using backend::EventId;

void add_groups(std::vector<backend::GroupSpec>& out, const std::string& name,
                const std::vector<std::vector<int>>& groups) {
  for (const auto& ranks : groups)
    if (ranks.size() > 1) out.push_back({name, ranks, 0});
}

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

bool same_tokens(const plan::TokenSpec& a, const plan::TokenSpec& b) {
  return a.kind == b.kind && a.file == b.file && a.map == b.map && a.constant == b.constant &&
         a.zipf_exponent == b.zipf_exponent && a.repeat_probability == b.repeat_probability;
}

template <typename T>
std::vector<T> download_values(Backend& backend, backend::StreamId stream, const T* src, std::int64_t count) {
  const std::vector<std::byte> bytes =
      download(backend, stream, reinterpret_cast<const std::byte*>(src), static_cast<std::size_t>(count) * sizeof(T));
  std::vector<T> values(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

std::vector<backend::GroupSpec> run_groups(const plan::RunLayout& layout) {
  std::vector<backend::GroupSpec> groups;
  add_groups(groups, "tp", layout.tp_groups);
  add_groups(groups, "edp", layout.edp_groups);
  add_groups(groups, "ep", layout.ep_groups);
  return groups;
}

struct StepRunner::Impl {
  explicit Impl(const StepRunnerInput& in)
      : input(in),
        backend(*in.backend),
        geometry(*in.geometry),
        shape(make_shape(*in.scenario, *in.layout, *in.geometry, in.rank)),
        main(backend.create_stream("main")) {
    if (!shape.stub && input.tables.size() != geometry.layers.size())
      fail(Exit::failure, "{} tables mapped for {} Engram layers", input.tables.size(), geometry.layers.size());
    groups.tp = open_group(backend, *input.layout, "tp", input.rank);
    if (shape.dp_sharded) groups.edp = open_group(backend, *input.layout, "edp", input.rank);
    groups.ep = open_group(backend, *input.layout, "ep", input.rank);
    weights.emplace(backend, shape, geometry, *input.reference, input.scenario->seed, main);
  }

  SlotResult run(const control::RunSlot& slot, const plan::Scenario& arm);

  void prepare(const control::RunSlot& slot, const plan::Scenario& arm);
  StepOptions options(const control::RunSlot& slot, const plan::Scenario& arm);
  std::uint32_t shape_number(const StepTokens& tokens);
  void run_steps(const control::RunSlot& slot, StepProgram& program, HiddenCapture* capture);
  void carry_out_fault(std::int64_t step) const;
  void progress(std::int64_t finished) const;
  StepOutput output(const control::RunSlot& slot, const StepProgram& program, bool all);
  HiddenCapture make_capture(std::int64_t valid);
  HiddenSamples samples(const HiddenCapture& capture);
  std::vector<Reuse> reuse_of(const control::RunSlot& slot, const plan::Scenario& arm,
                              std::span<const std::int32_t> last_ids);
  std::vector<RowLocality> localities(const control::RunSlot& slot, const plan::Scenario& arm);
  CheckFacts check(const control::RunSlot& slot, const plan::Scenario& arm, const StepOutput& out,
                   const std::optional<HiddenCapture>& capture);

  StepRunnerInput input;
  Backend& backend;
  const engram::Geometry& geometry;
  StepShape shape;
  backend::StreamId main;
  std::vector<backend::StreamId> prefetch;  // made when an arm first needs them
  Communicators groups;
  std::optional<StepWeights> weights;
  std::optional<StepBuffers> buffers;
  std::optional<ControlGather> control;  // made when a slot first asks for it
  StageTimes stage_times;
  std::optional<plan::TokenSpec> token_spec;
  std::shared_ptr<const replay::TokenModel> tokens;
  std::int32_t pad_id = 0;
  std::optional<SlotBatches> batches;
  std::vector<StepTokens> step_list;                            // of the running slot
  std::map<std::array<std::int64_t, 8>, std::uint32_t> shapes;  // of steps, by their token counts
  SlotTotals totals;
  std::optional<LocalityCounter> locality;  // made when a timed slot first needs it
  bool pages_hidden = false;
};

// Everything that takes the host's time is done here, before the first step: contexts of all steps built and uploaded,
// buffers large enough.
void StepRunner::Impl::prepare(const control::RunSlot& slot, const plan::Scenario& arm) {
  if (slot.steps < 1) fail(Exit::usage, "a slot needs at least one step, found {}", slot.steps);
  if (arm.workload.kind != plan::WorkloadKind::steps)
    fail(Exit::usage, "workload.kind {} is not built yet: use steps", plan::name(arm.workload.kind));
  if (!token_spec || !same_tokens(*token_spec, arm.workload.tokens)) {
    tokens = replay::make_token_model(arm.workload.tokens, geometry.model);
    pad_id = replay::read_token_map(arm.workload.tokens.map, geometry.model).pad_compressed();
    token_spec = arm.workload.tokens;
  }
  const replay::BatchSource source(arm, tokens, shape.replica);
  batches.emplace(backend, main, source, slot.first_step, slot.steps);

  StepLimits limits;
  totals = {};
  step_list.clear();
  for (std::int64_t i = 0; i < slot.steps; ++i) {
    const StepTokens step = step_tokens(shape, arm.workload, slot.first_step + i);
    if (step.own != batches->step(i).tokens)
      fail(Exit::failure, "step {}: the batch has {} tokens, the plan says {}", slot.first_step + i,
           batches->step(i).tokens, step.own);
    limits.cover(step);
    step_list.push_back(step);
    totals.own_tokens += step.own;
    totals.slot_tokens += step.slot;
    for (const int replica : shape.edp_replicas)
      totals.group_tokens += arm.workload.step_tokens(replica, slot.first_step + i);
  }
  totals.steps = slot.steps;
  totals.instrument = input.instrument;
  if (!buffers || !limits.fits_in(buffers->limits)) {
    if (buffers) limits.cover(buffers->limits.most);
    backend.drop_segments();
    buffers.reset();
    buffers.emplace(backend, shape, limits, input.scenario->seed, main);
  }
  const std::size_t wanted = arm.prefetch.streams == plan::Streams::fifo ? 1 : static_cast<std::size_t>(shape.tables);
  while (prefetch.size() < wanted)
    prefetch.push_back(backend.create_stream(fmt::format("prefetch.{}", prefetch.size())));
  totals.grid_cap = arm.prefetch.grid_cap.programs(backend.device().units);
  // Streams and units of a GPU are no threads of this machine; the rank's own is.
  totals.threads = backend.device().units_are_threads ? 1 + static_cast<int>(wanted) + backend.device().units : 1;
}

StepOptions StepRunner::Impl::options(const control::RunSlot& slot, const plan::Scenario& arm) {
  StepOptions options;
  if (!slot.inject_stage.empty())
    options.injection = stage_times.injection(slot.inject_stage, slot.inject_percent, geometry.layers.back().layer);
  if (slot.control && !shape.stub) {
    std::int64_t most = 0;
    for (const StepTokens& step : step_list) most = std::max(most, step.lookup);
    if (!control || control->tokens() < most)
      control.emplace(backend, shape, geometry, most, input.scenario->seed, main);
    options.control = &*control;
  }
  options.submit = arm.prefetch.submit;
  options.streams = arm.prefetch.streams;
  options.order = arm.prefetch.order;
  options.grid_cap = totals.grid_cap;
  options.graphs = arm.prefetch.graph == "piecewise";
  const plan::Fault& fault = input.scenario->fault;
  if (fault.rank == input.rank) {
    if (fault.kind == "skip_lookup") options.fault = LookupFault::skip;
    if (fault.kind == "late_lookup") options.fault = LookupFault::late;
    options.fault_step = fault.step;
  }
  return options;
}

void StepRunner::Impl::carry_out_fault(std::int64_t step) const {
  const plan::Fault& fault = input.scenario->fault;
  if (fault.rank != input.rank || fault.stage != "in_step" || fault.step != step) return;
  if (fault.kind == "kill") ::raise(SIGKILL);
  if (fault.kind == "fail") fail(Exit::failure, "planted fault: rank {} fails in step {}", input.rank, step);
  if (fault.kind == "hang")
    while (true) ::pause();
}

void StepRunner::Impl::progress(std::int64_t finished) const {
  if (input.progress == nullptr) return;
  input.progress->step.store(static_cast<std::uint32_t>(finished), std::memory_order_relaxed);
  input.progress->ticks.fetch_add(1, std::memory_order_relaxed);
}

std::uint32_t StepRunner::Impl::shape_number(const StepTokens& t) {
  const std::array<std::int64_t, 8> key = {t.own,          t.slot,         t.lookup, t.window,
                                           t.window_first, t.window_valid, t.padded, t.expert};
  return shapes.try_emplace(key, static_cast<std::uint32_t>(shapes.size())).first->second;
}

void StepRunner::Impl::run_steps(const control::RunSlot& slot, StepProgram& program, HiddenCapture* capture) {
  std::vector<EventId> done;
  const std::optional<std::int64_t> launched_before = backend.launches();
  const std::int64_t begin_ns = now_ns();
  for (std::int64_t i = 0; i < slot.steps; ++i) {
    if (i >= kInFlight) {
      backend.host_wait(done[static_cast<std::size_t>(i - kInFlight)]);
      progress(i - kInFlight + 1);
    }
    StepInput step;
    step.index = i;
    step.absolute = slot.first_step + i;
    step.tokens = step_list[static_cast<std::size_t>(i)];
    step.shape = shape_number(step.tokens);
    step.batch = batches->step(i);
    const bool last = i + 1 == slot.steps;
    step.poison = last && slot.check;
    step.capture = last ? capture : nullptr;
    const std::int64_t enqueue_ns = now_ns();
    done.push_back(program.enqueue(step));
    totals.host_enqueue_ns += now_ns() - enqueue_ns;
    carry_out_fault(i);
  }
  backend.synchronize();
  totals.wall_ns = now_ns() - begin_ns;
  if (launched_before) totals.launches = *backend.launches() - *launched_before;
  progress(slot.steps);
}

HiddenCapture StepRunner::Impl::make_capture(std::int64_t valid) {
  HiddenCapture capture;
  capture.tokens = sample_tokens(valid);
  const std::size_t count = std::max<std::size_t>(1, capture.tokens.size());
  const std::size_t hidden =
      count * static_cast<std::size_t>(shape.copies) * static_cast<std::size_t>(shape.hidden) * 2;
  for (int table = 0; table < shape.tables; ++table) {
    capture.before.push_back(backend.allocate(hidden, backend::MemoryKind::device, "hidden before the gate"));
    capture.after.push_back(backend.allocate(hidden, backend::MemoryKind::device, "hidden after the gate"));
    capture.kv.push_back(backend.allocate(count * static_cast<std::size_t>(shape.kv_width) * 2,
                                          backend::MemoryKind::device, "kv of sampled tokens"));
  }
  return capture;
}

HiddenSamples StepRunner::Impl::samples(const HiddenCapture& capture) {
  HiddenSamples out;
  out.tokens = capture.tokens;
  const auto values = [&](const BufferPtr& buffer) {
    return download_values(backend, main, buffer->as<Bf16>(), static_cast<std::int64_t>(buffer->size() / 2));
  };
  for (std::size_t table = 0; table < capture.kv.size(); ++table) {
    out.before.push_back(values(capture.before[table]));
    out.kv.push_back(values(capture.kv[table]));
    out.after.push_back(values(capture.after[table]));
  }
  return out;
}

// What the last step left; `all`: also rows and hidden states, for a check.
StepOutput StepRunner::Impl::output(const control::RunSlot& slot, const StepProgram& program, bool all) {
  StepOutput out;
  const std::int64_t last = slot.steps - 1;
  const bool poisoned = slot.check;
  out.tokens = step_list.back();
  out.masked = batches->last().masked;
  out.ids = download_values(backend, main, program.lookup_ids(last), out.tokens.lookup * shape.tables * shape.columns);
  if (!all) return out;
  for (int table = 0; table < shape.tables; ++table)
    out.rows.push_back(
        download_values(backend, main, program.gathered_rows(table), out.tokens.window * shape.row_width()));
  if (poisoned && shape.rows_in_staging())
    for (int table = 0; table < shape.tables; ++table)
      out.witness.push_back(
          download_values(backend, main, program.witness(table), out.tokens.window * shape.columns * kWitness));
  const std::int64_t token_size = std::int64_t{shape.copies} * shape.hidden;
  out.hidden = download_values(backend, main, buffers->hidden->as<Bf16>() + out.tokens.window_first * token_size,
                               out.tokens.window_valid * token_size);
  return out;
}

CheckFacts StepRunner::Impl::check(const control::RunSlot& slot, const plan::Scenario& arm, const StepOutput& out,
                                   const std::optional<HiddenCapture>& capture) {
  CheckFacts facts;
  std::vector<replay::StepBatch> group;
  for (const int replica : shape.edp_replicas)
    group.push_back(replay::BatchSource(arm, tokens, replica).step(slot.first_step + slot.steps - 1));
  check_ids(shape, geometry, out, group, pad_id, facts);
  check_rows(shape, geometry, *input.reference, out, facts);
  if (capture) check_hidden(shape, geometry, *input.reference, out, samples(*capture), facts);
  facts.hidden_sha256 = sha256_hex(std::as_bytes(std::span(out.hidden)));
  return facts;
}

// How often rows of the last step came again, and where the rows of all steps lie.
std::vector<Reuse> StepRunner::Impl::reuse_of(const control::RunSlot& slot, const plan::Scenario& arm,
                                              std::span<const std::int32_t> last_ids) {
  std::vector<Reuse> list;
  if (shape.stub) return list;
  const engram::Shard& shard = input.layout->ranks[static_cast<std::size_t>(input.rank)].shard;
  for (int table = 0; table < shape.tables; ++table) {
    list.push_back(count_reuse(geometry, shard, input.scenario->storage.layout, last_ids, table));
  }
  const std::vector<RowLocality> found = localities(slot, arm);
  for (std::size_t table = 0; table < found.size(); ++table) list[table].locality = found[table];
  return list;
}

// Of every step of a timed slot, by table; empty where rows cannot be located. The ids are hashed again, out of the
// same batches: those of the device are gone with the next step, and keeping them would cost time inside the slot.
std::vector<RowLocality> StepRunner::Impl::localities(const control::RunSlot& slot, const plan::Scenario& arm) {
  const int node = backend.device().numa_node;
  if (!slot.timed || input.host_tables == nullptr || node < 0 || pages_hidden) return {};
  if (!locality) {
    const engram::Shard& shard = input.layout->ranks[static_cast<std::size_t>(input.rank)].shard;
    locality.emplace(geometry, shard, plan::make_backing_layout(geometry, shard, input.scenario->storage),
                     input.host_tables, node);
  }
  std::vector<replay::BatchSource> sources;
  for (const int replica : shape.edp_replicas) sources.emplace_back(arm, tokens, replica);
  try {
    for (std::int64_t i = 0; i < slot.steps; ++i) {
      for (const replay::BatchSource& source : sources) {
        locality->add(reference_ids(geometry, source.step(slot.first_step + i), pad_id));
      }
      progress(slot.steps);  // says that the rank lives
    }
    return locality->take();
  } catch (const Error&) {
    pages_hidden = true;  // move_pages is refused here; the snapshots give the reason
    return {};
  }
}

SlotResult StepRunner::Impl::run(const control::RunSlot& slot, const plan::Scenario& arm) {
  prepare(slot, arm);
  EventLog log(backend, input.instrument);
  const std::int32_t pad = pad_id;
  StepProgram program({backend, shape, geometry, pad, input.tables, *buffers, *weights, groups, main, prefetch},
                      options(slot, arm), log);
  std::optional<HiddenCapture> capture;
  if (slot.check_hidden) capture = make_capture(step_list.back().window_valid);
  run_steps(slot, program, capture ? &*capture : nullptr);

  SlotResult result;
  result.events = log.take(slot.slot);
  if (slot.inject_stage.empty()) stage_times.learn(result.events);
  const bool checked = slot.check || slot.check_hidden;
  const StepOutput out = output(slot, program, checked);
  std::optional<CheckFacts> facts;
  if (checked) facts = check(slot, arm, out, capture);
  const std::vector<Reuse> reuse = reuse_of(slot, arm, out.ids);
  std::vector<std::optional<backend::LookupResources>> resources;
  for (const LookupCounts& lookup : program.counts().lookups) {
    resources.push_back(backend.lookup_resources(lookup.largest, totals.grid_cap));
  }
  result.facts_json = facts_json(shape, geometry, totals, program.counts(), reuse, resources, backend.device(), facts);
  return result;
}

StepRunner::StepRunner(const StepRunnerInput& input) : impl_(std::make_unique<Impl>(input)) {}
StepRunner::~StepRunner() = default;

SlotResult StepRunner::run(const control::RunSlot& slot, const plan::Scenario& arm) { return impl_->run(slot, arm); }

}  // namespace eb::rank
