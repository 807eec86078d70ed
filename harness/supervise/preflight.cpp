#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "harness/rank/backend_factory.h"
#include "harness/rank/tables/checkpoint.h"
#include "harness/rank/tables/storage.h"
#include "harness/replay/token_model.h"
#include "harness/supervise/binding.h"
#include "harness/supervise/copies.h"
#include "harness/supervise/memory_need.h"
#include "harness/supervise/reroll.h"
#include "placement/policy.h"
#include "placement/topology.h"

namespace eb::supervise {

namespace {

// Runs `check`; what it throws is an obstacle of `arm`.
void try_check(std::vector<Obstacle>& obstacles, const std::string& arm, const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    const Obstacle obstacle{error.exit(), arm.empty() ? error.what() : fmt::format("arm {}: {}", arm, error.what())};
    obstacles.push_back(obstacle);
  }
}

void check_shm_folder() {
  struct statvfs state {};
  if (::statvfs(placement::kShmFolder, &state) != 0) fail_errno(errno, placement::kShmFolder);
  if ((state.f_flag & ST_RDONLY) != 0 || ::access(placement::kShmFolder, W_OK) != 0) {
    fail(Exit::failure, "{} cannot be written: storage.backing shm needs it; use memfd", placement::kShmFolder);
  }
}

// storage.backing hbm: the tables of a device's ranks, with a seventh more for what a step needs, must fit into its
// memory; those of `all` scenarios at once.
void check_device_memory(const std::vector<TablesOf>& all) {
  const auto in_device = [](const TablesOf& one) { return one.scenario->storage.backing == plan::Backing::hbm; };
  if (std::none_of(all.begin(), all.end(), in_device)) return;
  const std::vector<std::int64_t> memory = rank::cuda_device_memory();
  if (memory.empty()) return;  // no GPU: said elsewhere
  std::vector<std::int64_t> need(memory.size());
  for (const TablesOf& one : all) {
    if (!in_device(one)) continue;
    for (const plan::RankPlace& place : one.layout.ranks) {
      const int device = rank::cuda_device(*one.scenario, place.rank, static_cast<int>(memory.size()));
      const auto backing = static_cast<std::size_t>(place.backing);
      need.at(static_cast<std::size_t>(device)) += one.layout.backings.at(backing).bytes;
    }
  }
  for (std::size_t i = 0; i < need.size(); ++i) {
    if (memory[i] == 0 || need[i] / 7 * 8 <= memory[i]) continue;
    fail(Exit::skipped, "storage.backing hbm: tables of {} do not fit into the {} of device {}",
         placement::human_bytes(need[i]), placement::human_bytes(memory[i]), i);
  }
}

struct Leniency {  // as preflight()
  bool rehearsal = false;
  bool allow_degraded = false;
};

void check_arm(std::vector<Obstacle>& obstacles, const std::string& arm, const plan::Scenario& scenario,
               const placement::Topology& topology, Leniency leniency) {
  const auto check = [&](const std::function<void()>& body) { try_check(obstacles, arm, body); };
  check([&] {
    const std::string missing = rank::missing_backend(scenario.device.backend);
    if (!missing.empty()) throw Error(Exit::skipped, missing);
    const plan::BackendKind backend = rank::resolve_backend(scenario.device.backend);
    if (scenario.storage.backing == plan::Backing::hbm && backend != plan::BackendKind::cuda) {
      fail(Exit::skipped, "storage.backing hbm needs a GPU; device.backend here is {}", plan::name(backend));
    }
    // A plan refuses this on the CPU by name; here `auto` has come to it.
    if (backend != plan::BackendKind::cpu) return;
    if (scenario.storage.backing == plan::Backing::cuda_host_numa) {
      fail(Exit::skipped, "storage.backing cuda-host-numa needs a GPU, and device.backend auto finds none here");
    }
    if (scenario.prefetch.graph != "off") {
      fail(Exit::skipped, "prefetch.graph {} needs a GPU, and device.backend auto finds none here",
           scenario.prefetch.graph);
    }
  });
  // Empty token files, ids out of the vocabulary, and a map (whose pad id every token model needs) that cannot be read:
  // said once, not by every rank.
  check([&] {
    static_cast<void>(replay::make_token_model(scenario.workload.tokens, scenario.model.base));
    static_cast<void>(replay::read_token_map(scenario.workload.tokens.map, scenario.model.base).pad_compressed());
  });
  rank::Sharing sharing = rank::Sharing::none;
  check([&] { sharing = rank::sharing_of(scenario.storage); });
  if (rank::in_host_memory(sharing) && scenario.storage.policy.kind != plan::PolicyKind::consumer) {
    check([&] { static_cast<void>(placement::resolve(scenario.storage.policy, topology)); });
  }
  if (!leniency.rehearsal) check([&] { check_copies(scenario, topology); });
  if (scenario.storage.backing == plan::Backing::shm) check(check_shm_folder);
  check([&] {
    const engram::Geometry geometry = engram::make_geometry(scenario.model.base, scenario.model.table_scale);
    const auto [layout, bindings] = machine_layout(scenario, geometry, topology, gpu_nodes_of(scenario));
    if (!leniency.allow_degraded) require_whole(bindings, scenario);
    for (const plan::BackingPlace& backing : layout.backings) {
      if (backing.node >= 0) {
        static_cast<void>(placement::resolve(plan::policy_of(scenario.storage, backing), topology));
      }
    }
    check_device_memory({{&scenario, layout}});
    check([&] { require_huge_pages(scenario, layout, topology); });
    const std::size_t arena = backend::arena_bytes(rank::run_groups(layout));
    require_memory(estimate_memory(scenario, layout, geometry, static_cast<std::int64_t>(arena),
                                   {leniency.allow_degraded, bindings}),
                   placement::read_memory_limits());
    if (!scenario.storage.checkpoint.empty()) rank::Checkpoint(scenario.storage.checkpoint, geometry);
  });
}

void check_coresident(const plan::Plan& plan, const placement::Topology& topology, bool allow_degraded) {
  std::vector<ArmMemory> arms;
  std::vector<TablesOf> tables;
  for (const plan::Arm& arm : plan.arms) {
    if (arm.control) continue;  // a control has a re-roll of its own
    const engram::Geometry geometry = engram::make_geometry(arm.scenario.model.base, arm.scenario.model.table_scale);
    const auto [layout, bindings] = machine_layout(arm.scenario, geometry, topology, gpu_nodes_of(arm.scenario));
    const auto arena = static_cast<std::int64_t>(backend::arena_bytes(rank::run_groups(layout)));
    arms.push_back({arm.name, estimate_memory(arm.scenario, layout, geometry, arena, {allow_degraded, bindings})});
    tables.push_back({&arm.scenario, layout});
  }
  try {
    check_device_memory(tables);
    require_huge_pages_together(tables, topology);
  } catch (const Error& error) {
    fail(error.exit(), "experiment.coresident holds the tables of all arms at once: {}", error.what());
  }
  require_memory_together(arms, placement::read_memory_limits());
}

int order_of(Exit exit) {
  switch (exit) {
    case Exit::usage:
      return 0;
    case Exit::skipped:
      return 1;
    default:
      return 2;
  }
}

// Why a control cannot run on this machine; null: it can, or it is an arm.
const Obstacle* lacks_something(const plan::Arm& arm, const std::vector<Obstacle>& obstacles) {
  if (!arm.control) return nullptr;
  const auto found =
      std::find_if(obstacles.begin(), obstacles.end(), [](const Obstacle& one) { return one.exit == Exit::skipped; });
  return found == obstacles.end() ? nullptr : &*found;
}

}  // namespace

void skip_controls(plan::Plan& plan, bool rehearsal) {
  const placement::Topology topology = placement::read_topology(placement::Devices::skip);
  std::erase_if(plan.arms, [&](const plan::Arm& arm) {
    if (!arm.control) return false;
    std::vector<Obstacle> own;
    check_arm(own, "", arm.scenario, topology, {rehearsal, true});
    const Obstacle* why = lacks_something(arm, own);
    if (why != nullptr) plan.skipped_controls.push_back({arm.name, why->text});
    return why != nullptr;
  });
}

std::vector<Obstacle> preflight(const plan::Plan& plan, bool rehearsal, bool allow_degraded) {
  std::vector<Obstacle> found;
  const Leniency leniency{rehearsal, allow_degraded};
  const placement::Topology topology = placement::read_topology(placement::Devices::skip);
  for (const plan::Arm& arm : plan.arms) {
    std::vector<Obstacle> own;
    check_arm(own, plan.arms.size() > 1 ? arm.name : "", arm.scenario, topology, leniency);
    if (!lacks_something(arm, own)) found.insert(found.end(), own.begin(), own.end());
  }
  if (plan.arms.empty()) check_arm(found, "", plan.base, topology, leniency);
  if (plan.experiment.coresident && found.empty())
    try_check(found, "", [&] { check_coresident(plan, topology, allow_degraded); });
  std::stable_sort(found.begin(), found.end(),
                   [](const Obstacle& a, const Obstacle& b) { return order_of(a.exit) < order_of(b.exit); });
  return found;
}

}  // namespace eb::supervise
