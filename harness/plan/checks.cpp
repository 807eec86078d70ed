#include "harness/plan/checks.h"

#include <algorithm>

#include "harness/base/error.h"
#include "harness/plan/layout.h"
#include "harness/plan/unbuilt.h"
#include "harness/plan/validity.h"

namespace eb::plan {

namespace {

constexpr std::int64_t kMaxStepTokens = 1'048'576;

void check_model(const Scenario& scenario, const engram::Geometry& geometry) {
  const engram::Model& model = scenario.model.base;
  const Backbone& backbone = scenario.model.backbone;
  if (model.pad_token >= model.raw_vocab) {
    fail(Exit::usage, "model.pad_token {} is outside model.raw_vocab {}", model.pad_token, model.raw_vocab);
  }
  if (backbone.layers <= geometry.layers.back().layer) {
    fail(Exit::usage, "model.backbone.layers is {}; the last Engram layer is {}, so at least {} are needed",
         backbone.layers, geometry.layers.back().layer, geometry.layers.back().layer + 1);
  }
  if (scenario.parallel.ep > 1 && backbone.expert_bytes_per_token == 0) {
    fail(
        Exit::usage,
        "parallel.ep {} couples the replicas by an all-to-all; state its size in model.backbone.expert_bytes_per_token",
        scenario.parallel.ep);
  }
}

void check_storage(const Scenario& scenario) {
  const StorageSpec& storage = scenario.storage;
  check_storage_choice({scenario.parallel.table_mode, storage.backing, storage.policy.kind, storage.copies});
  if (storage.backing == Backing::stub || storage.backing == Backing::hbm) return;
  if (storage.policy.kind == PolicyKind::stock && storage.pretouch != PretouchKind::none) {
    fail(Exit::usage, "storage.policy stock reproduces vLLM's shared tables: it needs storage.pretouch none, found {}",
         name(storage.pretouch));
  }
  if (storage.pinned_rounding != PinnedRounding::none && storage.backing != Backing::anon &&
      storage.backing != Backing::anon_thp) {
    fail(Exit::usage,
         "storage.pinned_rounding {} is what an allocator of private memory does: it needs storage.backing anon or "
         "anon-thp, found {}",
         name(storage.pinned_rounding), name(storage.backing));
  }
  const Policy& policy = storage.policy;
  if (storage.backing == Backing::cuda_host_numa && policy.kind == PolicyKind::bind && policy.nodes.size() > 1) {
    fail(Exit::usage,
         "storage.backing cuda-host-numa: a piece lies on one NUMA node; storage.policy {} names {} and leaves open "
         "which: use interleave or weighted",
         policy.text, policy.nodes.size());
  }
}

void check_workload(const Scenario& scenario) {
  const WorkloadSpec& workload = scenario.workload;
  const int dp = scenario.parallel.dp;
  for (std::size_t i = 0; i < workload.batches.size(); ++i) {
    const Batch& batch = workload.batches[i];
    if (batch.replica >= dp) {
      fail(Exit::usage, "workload.batches.{}.replica {} does not exist: parallel.dp is {}, replicas count from 0", i,
           batch.replica, dp);
    }
  }
  const std::int64_t most = workload.max_tokens(dp);
  if (most == 0) fail(Exit::usage, "workload.batches: no replica has a token in any step");
  if (most > kMaxStepTokens) {
    fail(Exit::usage, "workload.batches: a step of {} tokens; at most {} fit", most, kMaxStepTokens);
  }
  if (workload.tokens.kind == TokenKind::file && workload.tokens.file.empty()) {
    fail(Exit::usage, "workload.tokens.kind file needs workload.tokens.file");
  }
  if (workload.tokens.kind != TokenKind::file && !workload.tokens.file.empty()) {
    fail(Exit::usage, "workload.tokens.file is given, but workload.tokens.kind is {}; use kind file",
         name(workload.tokens.kind));
  }
  if (workload.tokens.kind == TokenKind::constant && workload.tokens.constant >= scenario.model.base.raw_vocab) {
    fail(Exit::usage, "workload.tokens.constant {} is out of the vocabulary (0..{})", workload.tokens.constant,
         scenario.model.base.raw_vocab - 1);
  }
}

void check_readers(const Scenario& scenario) {
  const ActiveReaders& readers = scenario.workload.active_readers;
  if (scenario.workload.kind != WorkloadKind::lookup) {
    if (readers.first > 0 || !readers.ranks.empty()) {
      fail(Exit::usage,
           "workload.active_readers is for workload.kind lookup, found {}: in a step every rank takes part",
           name(scenario.workload.kind));
    }
    return;
  }
  if (readers.first > scenario.ranks()) {
    fail(Exit::usage, "workload.active_readers {}: there are {} ranks (parallel.tp x parallel.dp)", readers.first,
         scenario.ranks());
  }
  std::vector<int> sorted = readers.ranks;
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty() && sorted.back() >= scenario.ranks()) {
    fail(Exit::usage, "workload.active_readers names rank {}: there are {} ranks, counted from 0", sorted.back(),
         scenario.ranks());
  }
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    fail(Exit::usage, "workload.active_readers names rank {} twice", *twice);
  }
  const plan::RunLayout layout =
      make_layout(scenario, engram::make_geometry(scenario.model.base, scenario.model.table_scale));
  for (const RankPlace& place : layout.ranks) {
    if (!readers.reads(place.rank)) continue;
    if (scenario.parallel.table_mode == TableMode::dp_sharded) return;  // every replica's tokens are looked up by all
    for (const Batch& batch : scenario.workload.batches_of(place.replica)) {
      if (batch.decode > 0 || !batch.prefill.empty()) return;
    }
  }
  fail(Exit::usage, "workload.active_readers: no reading rank has a token in any step");
}

// What the lookup alone does not have.
void check_lookup_alone(const Scenario& scenario) {
  if (scenario.workload.kind != WorkloadKind::lookup) {
    if (scenario.workload.window_launches > 0) {
      fail(Exit::usage, "workload.window_launches is for workload.kind lookup, found {}", name(scenario.workload.kind));
    }
    return;
  }
  const auto refuse = [](const char* key, const std::string& found, const char* why, const char* use) {
    fail(Exit::usage, "{} {} with workload.kind lookup: {}; use {}", key, found, why, use);
  };
  if (scenario.storage.backing == Backing::stub)
    refuse("storage.backing", "stub", "without a lookup nothing is left to time", "a backing with a table");
  if (scenario.prefetch.submit == Submit::at_consume)
    refuse("prefetch.submit", "at_consume", "nothing consumes the rows", "early");
  if (scenario.prefetch.streams == Streams::per_layer)
    refuse("prefetch.streams", "per_layer", "windows of one table follow those of another", "fifo");
  if (scenario.prefetch.graph != "off")
    refuse("prefetch.graph", scenario.prefetch.graph, "a graph holds the pieces between lookups", "off");
  if (scenario.parallel.ep > 1)
    refuse("parallel.ep", std::to_string(scenario.parallel.ep), "there is no layer to exchange in", "1");
  if (scenario.fault.kind == "late_lookup")
    refuse("fault.kind", "late_lookup", "no consumer is there to be late for", "skip_lookup");
}

void check_device(const Scenario& scenario, bool control) {
  const auto listed = scenario.device.rank_devices.size();
  if (listed != 0 && listed != static_cast<std::size_t>(scenario.ranks())) {
    fail(Exit::usage, "device.rank_map lists {} devices for {} ranks", listed, scenario.ranks());
  }
  const BackendKind backend = scenario.device.backend;
  // A control that the backend cannot do is left out of the run, by name.
  if (!control && scenario.storage.backing == Backing::hbm &&
      (backend == BackendKind::cpu || backend == BackendKind::fake)) {
    fail(Exit::usage,
         "storage.backing hbm is device memory: it needs device.backend cuda, found {}; stub is a bound too",
         name(backend));
  }
  if (scenario.storage.backing == Backing::cuda_host_numa && backend == BackendKind::cpu) {
    fail(Exit::usage,
         "storage.backing cuda-host-numa is made by a CUDA driver: it needs device.backend cuda, found cpu; "
         "use shm or memfd");
  }
  if (scenario.prefetch.graph != "off" && backend == BackendKind::cpu) {
    fail(Exit::usage, "prefetch.graph {} needs device.backend cuda, found cpu; use off", scenario.prefetch.graph);
  }
}

void check_fault(const Scenario& scenario) {
  const Fault& fault = scenario.fault;
  const bool wrong_rows = fault.kind == "skip_lookup" || fault.kind == "late_lookup";
  if (fault.kind == "none") {
    if (!fault.stage.empty()) fail(Exit::usage, "fault.stage is given without fault.kind");
    return;
  }
  if (fault.stage.empty()) fail(Exit::usage, "fault.kind {} needs fault.stage", fault.kind);
  if (wrong_rows && fault.stage != "in_step") {
    fail(Exit::usage, "fault.kind {} happens in a step: fault.stage in_step, found {}", fault.kind, fault.stage);
  }
  if (fault.kind == "corrupt" && fault.stage != "during_load") {
    fail(Exit::usage, "fault.kind corrupt happens in the load: fault.stage during_load, found {}", fault.stage);
  }
  if (fault.rank < 0 && fault.kind != "kill") {
    fail(Exit::usage, "fault.rank -1 is the supervisor, which only fault.kind kill strikes");
  }
  if (fault.rank >= scenario.ranks())
    fail(Exit::usage, "fault.rank {}: there are {} ranks", fault.rank, scenario.ranks());
}

void check_bounds(const Scenario& scenario, bool control, const std::string& factor) {
  const Backing backing = scenario.storage.backing;
  if (control || (backing != Backing::hbm && backing != Backing::stub)) return;
  if (factor.starts_with("prefetch.")) {
    fail(Exit::usage, "storage.backing {} is a bound without a prefetch to compare; it cannot be an arm of {}",
         name(backing), factor);
  }
  fail(Exit::usage, "storage.backing {} is a bound, not an arm; measure it in experiment.controls", name(backing));
}

}  // namespace

void check_scenario(const Scenario& scenario, bool control, const std::string& factor) {
  if (scenario.model.base.ids_given) check_unbuilt(scenario);  // such a model has nothing that the rest could check
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, scenario.model.table_scale);
  static_cast<void>(make_layout(scenario, geometry));
  check_model(scenario, geometry);
  check_device(scenario, control);
  check_storage(scenario);
  check_workload(scenario);
  check_readers(scenario);
  check_lookup_alone(scenario);
  check_fault(scenario);
  check_bounds(scenario, control, factor);
  check_unbuilt(scenario);
}

}  // namespace eb::plan
