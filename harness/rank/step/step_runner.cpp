#include "harness/rank/step/step_runner.h"

#include <unistd.h>
#include <csignal>

#include <optional>
#include <utility>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/rank/step/slot_work.h"
#include "harness/rank/step/step_buffers.h"
#include "harness/rank/step/step_trace.h"
#include "harness/rank/step/step_work.h"
#include "harness/rank/step/window_work.h"

namespace eb::rank {
namespace {

void add_groups(std::vector<backend::GroupSpec>& out, const std::string& name,
                const std::vector<std::vector<int>>& groups) {
  for (const auto& ranks : groups)
    if (ranks.size() > 1) out.push_back({name, ranks, 0});
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
  explicit Impl(const StepRunnerInput& in) : shared(in) {
    // Weights and communicators of a model are made before any slot; windows have neither.
    if (in.scenario->workload.kind == plan::WorkloadKind::steps) steps.emplace(shared);
  }

  SlotResult run(const control::RunSlot& slot, const plan::Scenario& arm);
  SlotWork& work_of(const control::RunSlot& slot, const plan::Scenario& arm);
  HostWork run_steps(SlotWork& work, std::int64_t count);
  void carry_out_fault(std::int64_t step) const;
  void progress(std::int64_t finished) const;

  SlotShared shared;
  std::optional<StepWork> steps;
  std::optional<WindowWork> windows;
};

SlotWork& StepRunner::Impl::work_of(const control::RunSlot& slot, const plan::Scenario& arm) {
  if (arm.workload.kind == plan::WorkloadKind::lookup || slot.bare) {
    if (!windows) windows.emplace(shared);
    return *windows;
  }
  if (!steps) steps.emplace(shared);
  return *steps;
}

void StepRunner::Impl::carry_out_fault(std::int64_t step) const {
  const plan::Fault& fault = shared.input.scenario->fault;
  if (fault.rank != shared.input.rank || fault.stage != "in_step" || fault.step != step) return;
  if (fault.kind == "kill") ::raise(SIGKILL);
  if (fault.kind == "fail") fail(Exit::failure, "planted fault: rank {} fails in step {}", shared.input.rank, step);
  if (fault.kind == "hang")
    while (true) ::pause();
}

void StepRunner::Impl::progress(std::int64_t finished) const {
  if (shared.input.progress == nullptr) return;
  shared.input.progress->step.store(static_cast<std::uint32_t>(finished), std::memory_order_relaxed);
  shared.input.progress->ticks.fetch_add(1, std::memory_order_relaxed);
}

HostWork StepRunner::Impl::run_steps(SlotWork& work, std::int64_t count) {
  HostWork host;
  std::vector<backend::EventId> done;
  const std::optional<std::int64_t> launched_before = shared.backend.launches();
  const std::int64_t begin_ns = now_ns();
  for (std::int64_t i = 0; i < count; ++i) {
    if (i >= kInFlight) {
      shared.backend.host_wait(done[static_cast<std::size_t>(i - kInFlight)]);
      progress(i - kInFlight + 1);
    }
    const std::int64_t enqueue_ns = now_ns();
    done.push_back(work.enqueue(i));
    host.enqueue_ns += now_ns() - enqueue_ns;
    carry_out_fault(i);
  }
  shared.backend.synchronize();
  host.wall_ns = now_ns() - begin_ns;
  if (launched_before) host.launches = *shared.backend.launches() - *launched_before;
  progress(count);
  return host;
}

SlotResult StepRunner::Impl::run(const control::RunSlot& slot, const plan::Scenario& arm) {
  if (slot.steps < 1) fail(Exit::usage, "a slot needs at least one step, found {}", slot.steps);
  SlotWork& work = work_of(slot, arm);
  EventLog log(shared.backend, shared.input.instrument);
  const std::int64_t count = work.prepare(slot, arm, log);
  // Never around steps whose times are figures, except in a run that is marked as traced.
  const backend::Observation look{slot.observed || slot.trace, slot.trace, slot.observed || slot.check_hidden};
  const bool observing = look.ranges || look.spans || look.units;
  if (observing) shared.backend.begin_observation(look);
  HostWork host = run_steps(work, count);
  backend::Observed seen;
  if (observing) seen = shared.backend.end_observation();
  host.lookup_units = seen.lookup_units;
  SlotResult result;
  if (slot.trace) result.trace_json = trace_json(seen);
  result.events = log.take(slot.slot);
  if (slot.inject_stage.empty() && !slot.bare) shared.stage_times.learn(result.events);
  work.finish(host, result);
  return result;
}

StepRunner::StepRunner(const StepRunnerInput& input) : impl_(std::make_unique<Impl>(input)) {}
StepRunner::~StepRunner() = default;

SlotResult StepRunner::run(const control::RunSlot& slot, const plan::Scenario& arm) { return impl_->run(slot, arm); }

}  // namespace eb::rank
