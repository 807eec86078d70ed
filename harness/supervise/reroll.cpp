#include "harness/supervise/reroll.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <map>
#include <numeric>

#include "harness/base/mapping.h"
#include "harness/base/os.h"
#include "harness/rank/step/step_runner.h"
#include "harness/rank/tables/storage.h"
#include "harness/supervise/binding.h"
#include "harness/supervise/copies.h"
#include "harness/supervise/crew.h"
#include "harness/supervise/memory_need.h"
#include "harness/supervise/signals.h"
#include "placement/backing.h"
#include "placement/policy.h"
#include "placement/topology.h"

namespace eb::supervise {

namespace {

using control::Stage;

constexpr int kEndMs = 5'000;  // for a rank to end by itself after Stop

std::vector<int> all_ranks(const plan::RunLayout& layout) {
  std::vector<int> ranks(layout.ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> leaders_of(const plan::RunLayout& layout) {
  std::vector<int> ranks;
  for (const plan::BackingPlace& backing : layout.backings) ranks.push_back(backing.leader);
  return ranks;
}

// The groups of ranks that register one after another; within a group all at once.
std::vector<std::vector<int>> register_groups(plan::RegisterOrder order, const plan::RunLayout& layout) {
  const std::vector<int> all = all_ranks(layout);
  switch (order) {
    case plan::RegisterOrder::concurrent:
      return {all};
    case plan::RegisterOrder::serial: {
      std::vector<std::vector<int>> groups;
      for (const int rank : all) groups.push_back({rank});
      return groups;
    }
    case plan::RegisterOrder::leader_first:
      break;
  }
  std::vector<int> leaders = leaders_of(layout);
  std::sort(leaders.begin(), leaders.end());
  std::vector<int> others;
  std::set_difference(all.begin(), all.end(), leaders.begin(), leaders.end(), std::back_inserter(others));
  if (others.empty()) return {leaders};
  return {leaders, others};
}

}  // namespace

struct Reroll::Impl {
  Impl(const plan::Scenario& scenario_in, const plan::RunLayout& layout_in, const Options& options_in)
      : scenario(scenario_in), layout(layout_in), options(options_in) {}
  ~Impl() {
    if (crew) crew->kill_all();
    for (const auto& [backing, path] : stock_paths) placement::unlink_stock_file(path);
    // A leader that was killed before it could say its file's name: its owner is gone now.
    if (sharing == rank::Sharing::named) clean_stale();
  }

  void start();
  void create_and_map();
  void stock_life_cycle();
  void life_cycle();
  void compare_copies();
  void prepare();

  void run(Stage stage, const std::vector<int>& ranks);
  void collect_stage(Stage answer, const std::vector<int>& ranks, const std::string& doing);
  void record(int rank, const control::StageDone& done);
  void snapshot(const std::string& label);
  void supervisor_fault(const char* where) const;

  plan::Scenario scenario;
  plan::RunLayout layout;
  Options options;
  engram::Geometry geometry;
  rank::Sharing sharing = rank::Sharing::none;
  std::size_t arena_bytes = 0;
  UniqueFd arena;
  std::unique_ptr<Crew> crew;
  // Of each backing, until all readers have it: one descriptor, or one of each piece.
  std::map<int, std::vector<UniqueFd>> descriptors;
  std::map<int, std::vector<control::TablePiece>> pieces;
  std::map<int, std::string> stock_paths;  // of each backing, until unlinked
  StorageReport report;
};

// A planted fault of the supervisor itself: it dies as if killed from outside.
void Reroll::Impl::supervisor_fault(const char* where) const {
  const plan::Fault& fault = scenario.fault;
  if (fault.kind == "kill" && fault.rank == -1 && fault.stage == where) ::raise(SIGKILL);
}

void Reroll::Impl::start() {
  sharing = rank::sharing_of(scenario.storage);
  geometry = engram::make_geometry(scenario.model.base, scenario.model.table_scale);
  const placement::Topology topology = placement::read_topology(placement::Devices::skip);
  const std::vector<RankBinding>& bindings = report.bindings =
      bind_ranks(scenario, layout, topology, gpu_nodes_of(scenario));
  if (!options.allow_degraded) require_whole(bindings, scenario);
  plan::place_backings(layout, scenario.storage, nodes_of(bindings));  // as every rank does; no change to one of here
  if (rank::in_host_memory(sharing)) {
    for (const plan::BackingPlace& backing : layout.backings) {
      static_cast<void>(placement::resolve(plan::policy_of(scenario.storage, backing), topology));
    }
  }
  require_huge_pages(scenario, layout, topology);
  const auto groups = rank::run_groups(layout);
  arena_bytes = backend::arena_bytes(groups);
  require_memory(estimate_memory(scenario, layout, geometry, static_cast<std::int64_t>(arena_bytes),
                                 {options.allow_degraded, bindings}),
                 placement::read_memory_limits());
  arena = make_memfd("engram-bench arena", std::max<std::size_t>(arena_bytes, 1));

  const std::int64_t begin = now_ns();
  crew = std::make_unique<Crew>(layout, options.timeout_ms, std::vector<std::string>{"rank"});
  const std::string scenario_json = plan::to_json(scenario);
  const std::vector<int> rank_nodes = nodes_of(bindings);
  for (const plan::RankPlace& place : layout.ranks) {
    const RankBinding& binding = bindings[static_cast<std::size_t>(place.rank)];
    control::Setup setup;
    setup.rank = place.rank;
    setup.scenario_json = scenario_json;
    setup.arena_bytes = arena_bytes;
    setup.allowed_cpus = binding.cpus;
    setup.memory_nodes = binding.memory_nodes;
    setup.numa_node = binding.numa_node;
    setup.device = binding.device;
    setup.rank_nodes = rank_nodes;
    setup.instrument = options.instrument;
    setup.allow_degraded = options.allow_degraded;
    crew->send(place.rank, setup, std::array{arena.get(), crew->progress_fd()});
  }
  report.pids.assign(layout.ranks.size(), 0);
  crew->collect(all_ranks(layout), "start", [&](int rank, const auto& received) {
    const auto* ready = std::get_if<control::Ready>(&received.message);
    if (ready == nullptr) return false;
    report.pids[static_cast<std::size_t>(rank)] = ready->pid;
    for (const auto* lost : {&bindings[static_cast<std::size_t>(rank)].refused, &ready->binding_lost}) {
      for (const control::LostPart& one : *lost) report.degraded.push_back({rank, one.part, one.text});
    }
    return true;
  });
  std::stable_sort(report.degraded.begin(), report.degraded.end(),
                   [](const auto& a, const auto& b) { return a.rank < b.rank; });
  report.ranks_ready_ns = now_ns() - begin;
}

void Reroll::Impl::record(int rank, const control::StageDone& done) {
  report.stages.push_back({rank, done.stage, done.start_ns, done.end_ns, done.minor_faults, done.major_faults,
                           done.allocated_before_bytes, done.allocated_after_bytes});
}

// Until every rank has said that `answer` is done; other stages it reports on the way are recorded as well.
void Reroll::Impl::collect_stage(Stage answer, const std::vector<int>& ranks, const std::string& doing) {
  crew->collect(ranks, doing, [&](int rank, control::Received<control::ToSupervisor>& received) {
    const auto* done = std::get_if<control::StageDone>(&received.message);
    if (done == nullptr) return false;
    if (done->stage != Stage::stock_open) record(rank, *done);
    const int backing = layout.ranks[static_cast<std::size_t>(rank)].backing;
    if (done->stage == Stage::create && !received.fds.empty()) {
      descriptors[backing] = std::move(received.fds);
      pieces[backing] = done->pieces;
    }
    if (done->stage == Stage::create && !done->note.empty()) stock_paths[backing] = done->note;
    if (done->stage == Stage::policy && !done->note.empty()) report.policies_refused.push_back({rank, done->note});
    if (done->stage == Stage::digest) report.digests.push_back({backing, done->note});
    return done->stage == answer;
  });
}

void Reroll::Impl::run(Stage stage, const std::vector<int>& ranks) {
  for (const int rank : ranks) crew->send(rank, control::RunStage{stage, {}});
  collect_stage(stage, ranks, control::name(stage));
}

void Reroll::Impl::snapshot(const std::string& label) {
  if (!rank::in_host_memory(sharing)) return;  // nothing is mapped
  const std::vector<int> ranks = all_ranks(layout);
  for (const int rank : ranks) crew->send(rank, control::Snapshot{label});
  std::vector<SnapshotReport> found;
  crew->collect(ranks, "snapshot " + label, [&](int rank, control::Received<control::ToSupervisor>& received) {
    auto* done = std::get_if<control::SnapshotDone>(&received.message);
    if (done == nullptr) return false;
    found.push_back({rank, done->label, std::move(done->json)});
    return true;
  });
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  std::move(found.begin(), found.end(), std::back_inserter(report.snapshots));
}

void Reroll::Impl::create_and_map() {
  if (sharing == rank::Sharing::descriptor || sharing == rank::Sharing::pieces) run(Stage::create, leaders_of(layout));
  supervisor_fault("before_map");
  for (const plan::RankPlace& place : layout.ranks) {
    std::vector<int> fds;
    for (const UniqueFd& fd : descriptors[place.backing]) fds.push_back(fd.get());
    crew->send(place.rank, control::RunStage{Stage::map, {}, pieces[place.backing]}, fds);
  }
  collect_stage(Stage::map, all_ranks(layout), control::name(Stage::map));
  descriptors.clear();  // the readers hold the backing now; it ends with them
}

void Reroll::Impl::life_cycle() {
  create_and_map();
  snapshot("after_map");
  run(Stage::policy, rank::policy_of_each_mapping(scenario.storage.backing) ? all_ranks(layout) : leaders_of(layout));
  std::sort(report.policies_refused.begin(), report.policies_refused.end(),
            [](const RefusedPolicy& a, const RefusedPolicy& b) { return a.rank < b.rank; });
  run(Stage::pretouch, leaders_of(layout));
  snapshot("after_pretouch");
  supervisor_fault("before_register");
  for (const auto& group : register_groups(scenario.storage.register_order, layout)) run(Stage::register_, group);
}

// Stock vLLM's order: the name goes out, each rank opens, maps and registers at once, nothing is set or touched before,
// errors of all are gathered, then the name goes.
void Reroll::Impl::stock_life_cycle() {
  run(Stage::create, leaders_of(layout));
  supervisor_fault("before_map");
  for (const auto& group : register_groups(scenario.storage.register_order, layout)) {
    for (const int rank : group) {
      const int backing = layout.ranks[static_cast<std::size_t>(rank)].backing;
      crew->send(rank, control::RunStage{Stage::stock_open, stock_paths.at(backing)});
    }
    supervisor_fault("before_register");
    collect_stage(Stage::stock_open, group, "map and register");
  }
  for (const auto& [backing, path] : stock_paths) placement::unlink_stock_file(path);
  stock_paths.clear();
}

// Every copy of a shard was loaded by a leader of its own; they must hold the same bytes.
void Reroll::Impl::compare_copies() {
  if (scenario.storage.copies != plan::Copies::per_numa_node) return;
  run(Stage::digest, leaders_of(layout));
  std::sort(report.digests.begin(), report.digests.end(),
            [](const CopyDigest& a, const CopyDigest& b) { return a.backing < b.backing; });
  require_equal_copies(layout, report.digests);
}

void Reroll::Impl::prepare() {
  if (sharing == rank::Sharing::none) {
    // No tables: only the stages before which a fault is planted have a meaning, and the pipeline itself.
    supervisor_fault("before_map");
    run(Stage::prepare, all_ranks(layout));
    return;
  }
  if (sharing == rank::Sharing::named) {
    stock_life_cycle();
  } else {
    life_cycle();
  }
  snapshot("after_register");
  for (const int rank : leaders_of(layout)) crew->send(rank, control::RunStage{Stage::load, {}});
  supervisor_fault("during_load");
  collect_stage(Stage::load, leaders_of(layout), control::name(Stage::load));
  compare_copies();
  snapshot("after_load");
  run(Stage::prepare, all_ranks(layout));
}

Reroll::Reroll(const plan::Scenario& scenario, const plan::RunLayout& layout, const Options& options)
    : impl_(std::make_unique<Impl>(scenario, layout, options)) {
  clean_stale();
  impl_->start();
  impl_->prepare();
}

Reroll::~Reroll() = default;

std::vector<SlotReport> Reroll::run_slot(const control::RunSlot& asked) {
  Impl& impl = *impl_;
  const std::vector<int> ranks = all_ranks(impl.layout);
  control::RunSlot slot = asked;
  slot.trace = impl.options.trace && slot.timed;
  for (const int rank : ranks) impl.crew->send(rank, slot);
  if (impl.scenario.fault.rank == -1 && impl.scenario.fault.stage == "in_step") {
    // Once a step runs; a slot that is over before is late enough as well.
    for (int i = 0; i < 1000 && impl.crew->progress(0).step.load() == 0; ++i) ::usleep(1000);
    impl.supervisor_fault("in_step");
  }
  std::vector<SlotReport> reports(ranks.size());
  impl.crew->collect(ranks, fmt::format("slot {}", slot.slot), [&](int rank, auto& received) {
    auto* done = std::get_if<control::SlotDone>(&received.message);
    if (done == nullptr) return false;
    SlotReport& report = reports[static_cast<std::size_t>(rank)];
    report.rank = rank;
    report.facts_json = std::move(done->facts_json);
    report.trace_json = std::move(done->trace_json);
    report.window_launches = done->window_launches;
    const std::size_t bytes = done->event_count * sizeof(rank::EventRecord);
    struct stat state {};
    if (received.fds.size() != 1 || ::fstat(received.fds[0].get(), &state) != 0 ||
        static_cast<std::uint64_t>(state.st_size) < bytes) {
      fail(Exit::failure, "{}: slot {}: its events did not arrive", impl.crew->label(rank), slot.slot);
    }
    if (bytes > 0) {
      const Mapping source = Mapping::shared(received.fds[0].get(), bytes, "events");
      report.events.resize(done->event_count);
      std::memcpy(report.events.data(), source.data(), bytes);
    }
    return true;
  });
  return reports;
}

void Reroll::snapshot(const std::string& label) { impl_->snapshot(label); }

void Reroll::tear_down() {
  Impl& impl = *impl_;
  const std::vector<int> ranks = all_ranks(impl.layout);
  impl.run(Stage::unregister, ranks);
  impl.run(Stage::unmap, ranks);
  for (const int rank : ranks) impl.crew->send(rank, control::Stop{});
  impl.crew->wait_all(kEndMs);
}

const StorageReport& Reroll::storage() const noexcept { return impl_->report; }

void clean_stale() { placement::remove_stale_stock_files(); }

}  // namespace eb::supervise
