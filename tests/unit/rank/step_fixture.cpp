#include "tests/unit/rank/step_fixture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <span>
#include <thread>

#include "harness/base/mapping.h"
#include "harness/engram/content.h"

namespace eb::rank::test {
namespace {

class SyntheticReference final : public RowReference {
 public:
  SyntheticReference(const engram::Geometry& geometry, std::uint64_t seed) : geometry_(geometry), seed_(seed) {}
  void row(std::size_t layer_index, std::int64_t row, std::span<std::uint8_t> weights,
           std::span<std::uint8_t> scales) const override {
    engram::synthetic_row(geometry_, seed_, geometry_.layers[layer_index].layer, row, weights, scales);
  }
  void weights(const std::string& name, std::int64_t fan_in, std::int64_t first, std::span<Bf16> out) const override {
    engram::synthetic_weights(name, seed_, fan_in, first, out);
  }

 private:
  const engram::Geometry& geometry_;
  std::uint64_t seed_;
};

std::vector<std::uint8_t> fill_backing(const engram::Geometry& geometry, const engram::Shard& shard,
                                       plan::Layout layout, std::uint64_t seed) {
  const plan::BackingLayout places = plan::make_backing_layout(geometry, shard, layout);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(places.bytes));
  const std::span<std::uint8_t> all(bytes);
  for (std::size_t table = 0; table < places.layers.size(); ++table) {
    const plan::TablePlace& at = places.layers[table];
    for (std::int64_t row = 0; row < shard.rows[table].count; ++row)
      engram::synthetic_row(geometry, seed, geometry.layers[table].layer, shard.rows[table].first + row,
                            all.subspan(static_cast<std::size_t>(at.weights_offset + row * at.weight_stride),
                                        static_cast<std::size_t>(geometry.row_weight_bytes())),
                            all.subspan(static_cast<std::size_t>(at.scales_offset + row * at.scale_stride),
                                        static_cast<std::size_t>(geometry.row_scale_bytes())));
  }
  return bytes;
}

std::vector<kernels::TableView> views(const engram::Geometry& geometry, const engram::Shard& shard, plan::Layout layout,
                                      const std::vector<std::uint8_t>& bytes) {
  std::vector<kernels::TableView> out;
  const plan::BackingLayout places = plan::make_backing_layout(geometry, shard, layout);
  const auto* base = reinterpret_cast<const std::byte*>(bytes.data());
  for (std::size_t table = 0; table < places.layers.size(); ++table) {
    const plan::TablePlace& at = places.layers[table];
    kernels::TableView view;
    view.weights = base + at.weights_offset;
    view.scales = base + at.scales_offset;
    view.weight_stride = at.weight_stride;
    view.scale_stride = at.scale_stride;
    view.first_row = shard.rows[table].first;
    view.rows = shard.rows[table].count;
    view.dim = geometry.model.dim;
    view.block = geometry.model.block;
    out.push_back(view);
  }
  return out;
}

struct Shared {
  const StepRun& run;
  engram::Geometry geometry;
  plan::RunLayout layout;
  std::vector<backend::GroupSpec> groups;
  Mapping arena;
  std::vector<std::vector<std::uint8_t>> backings;
};

// After each slot all ranks meet, and none goes on when one has failed: it would wait for that one's collectives.
struct Meeting {
  explicit Meeting(std::size_t ranks) : barrier(static_cast<std::ptrdiff_t>(ranks)) {}
  bool go_on(bool ok) {
    if (!ok) failed.store(true);
    barrier.arrive_and_wait();
    return !failed.load();
  }
  std::atomic<bool> failed{false};
  std::barrier<> barrier;
};

void run_rank(const Shared& shared, int rank, Meeting& meeting, RankOutcome& outcome) {
  const StepRun& run = shared.run;
  const plan::RankPlace& place = shared.layout.ranks[static_cast<std::size_t>(rank)];
  std::unique_ptr<backend::Backend> backend;
  backend::fake::FakeBackend* fake = nullptr;
  try {
    const backend::Arena arena{shared.arena.data(), shared.arena.size()};
    if (run.device == Device::cpu) {
      backend::CpuOptions options;
      options.workers = 2;
      options.arena = arena;
      options.groups = shared.groups;
      options.rank = rank;
      backend = backend::make_cpu_backend(options);
    } else {
      backend::fake::FakeOptions options;
      options.units = 2;
      options.arena = arena;
      options.groups = shared.groups;
      options.rank = rank;
      options.script = run.script;
      options.record_graph = true;
      auto made = backend::fake::make_fake_backend(options);
      fake = made.get();
      backend = std::move(made);
    }
    const SyntheticReference reference(shared.geometry, run.scenario.seed);
    StepRunnerInput input;
    input.scenario = &run.scenario;
    input.layout = &shared.layout;
    input.geometry = &shared.geometry;
    input.rank = rank;
    input.backend = backend.get();
    if (run.scenario.storage.backing != plan::Backing::stub)
      input.tables = views(shared.geometry, place.shard, run.scenario.storage.layout,
                           shared.backings[static_cast<std::size_t>(place.backing)]);
    input.reference = &reference;
    input.instrument = run.instrument;
    StepRunner runner(input);
    if (fake != nullptr) fake->clear_graph();
    for (std::size_t i = 0; i < run.slots.size(); ++i) {
      try {
        outcome.slots.push_back(runner.run(run.slots[i], run.arms.empty() ? run.scenario : run.arms[i]));
        outcome.facts.push_back(nlohmann::json::parse(outcome.slots.back().facts_json));
      } catch (const Error&) {
        (void)meeting.go_on(false);
        throw;
      }
      if (!meeting.go_on(true)) return;
    }
    if (fake != nullptr) outcome.operations = fake->graph().operations();
  } catch (const Error& error) {
    outcome.exit = error.exit();
    outcome.error = error.what();
  }
}

}  // namespace

std::vector<RankOutcome> run_ranks(const StepRun& run) {
  Shared shared{run, engram::make_geometry(run.scenario.model.base, run.scenario.model.table_scale), {}, {}, {}, {}};
  shared.layout = plan::make_layout(run.scenario, shared.geometry);
  shared.groups = run_groups(shared.layout);
  const std::size_t bytes = backend::arena_bytes(shared.groups);
  shared.arena = Mapping::anonymous(bytes == 0 ? 4096 : bytes, "arena");
  for (const plan::BackingPlace& backing : shared.layout.backings)
    shared.backings.push_back(fill_backing(shared.geometry,
                                           shared.layout.ranks[static_cast<std::size_t>(backing.leader)].shard,
                                           run.scenario.storage.layout, run.scenario.seed));
  std::vector<RankOutcome> outcomes(shared.layout.ranks.size());
  Meeting meeting(outcomes.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    threads.emplace_back([&, rank] { run_rank(shared, static_cast<int>(rank), meeting, outcomes[rank]); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

plan::Scenario tiny(int tp, int dp, plan::TableMode mode, int heads, int tables) {
  plan::Scenario scenario;
  engram::Model& model = scenario.model.base;
  model = engram::preset("tiny");
  model.heads_per_ngram = heads;
  model.head_rows.resize(static_cast<std::size_t>(heads));
  model.layers.clear();
  for (int i = 0; i < tables; ++i) model.layers.push_back(2 * i);
  scenario.model.backbone.layers = 2 * tables;
  scenario.model.backbone.weight_bytes_per_layer = 2 * 64 * 48;
  scenario.model.backbone.flops_per_token_per_layer = 2 * scenario.model.backbone.weight_bytes_per_layer;
  scenario.parallel.tp = tp;
  scenario.parallel.dp = dp;
  scenario.parallel.table_mode = mode;
  scenario.workload.batches = {batch({5}, 3)};
  scenario.seed = 11;
  return scenario;
}

plan::Scenario two_layers(int tp, int dp, plan::TableMode mode) {
  plan::Scenario scenario = tiny(tp, dp, mode);
  engram::Model& model = scenario.model.base;
  model.layers = {1, 3};
  model.ngram_sizes = {2, 3};
  model.heads_per_ngram = 4;
  model.head_rows.clear();
  model.prime_start = 300;
  scenario.model.backbone.layers = 4;
  return scenario;
}

plan::Batch batch(std::vector<std::int64_t> prefill, std::int64_t decode, int replica) {
  plan::Batch out;
  out.prefill = std::move(prefill);
  out.decode = decode;
  out.replica = replica;
  return out;
}

control::RunSlot timed_slot(std::int64_t steps, std::int64_t first_step) {
  control::RunSlot slot;
  slot.steps = steps;
  slot.first_step = first_step;
  return slot;
}

control::RunSlot checked_slot(std::int64_t steps, std::int64_t first_step) {
  control::RunSlot slot = timed_slot(steps, first_step);
  slot.check = true;
  slot.check_hidden = true;
  return slot;
}

std::vector<std::int64_t> times_of(const SlotResult& slot, EventKind kind, int layer) {
  std::vector<std::int64_t> times;
  for (const EventRecord& record : slot.events)
    if (record.kind == static_cast<std::uint16_t>(kind) && record.layer == layer &&
        record.clock == static_cast<std::uint8_t>(Clock::device))
      times.push_back(record.time_ns);
  return times;
}

void expect_ok(const std::vector<RankOutcome>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    EXPECT_EQ(static_cast<int>(ranks[rank].exit), 0) << "rank " << rank << ": " << ranks[rank].error;
}

}  // namespace eb::rank::test
