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

void check_arm(std::vector<Obstacle>& obstacles, const std::string& arm, const plan::Scenario& scenario,
               const placement::Topology& topology, bool rehearsal) {
  const auto check = [&](const std::function<void()>& body) { try_check(obstacles, arm, body); };
  check([&] {
    const std::string missing = rank::missing_backend(scenario.device.backend);
    if (!missing.empty()) throw Error(Exit::skipped, missing);
    // A plan refuses these on the CPU by name; here `auto` has come to it.
    if (rank::resolve_backend(scenario.device.backend) != plan::BackendKind::cpu) return;
    if (scenario.storage.backing == plan::Backing::hbm) {
      fail(Exit::skipped, "storage.backing hbm needs a GPU, and device.backend auto finds none here");
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
  if (!rehearsal) check([&] { check_copies(scenario, topology); });
  if (scenario.storage.backing == plan::Backing::shm) check(check_shm_folder);
  check([&] {
    const engram::Geometry geometry = engram::make_geometry(scenario.model.base, scenario.model.table_scale);
    const plan::RunLayout layout = machine_layout(scenario, geometry, topology, gpu_nodes_of(scenario)).layout;
    for (const plan::BackingPlace& backing : layout.backings) {
      if (backing.node >= 0) {
        static_cast<void>(placement::resolve(plan::policy_of(scenario.storage, backing), topology));
      }
    }
    check([&] { require_huge_pages(scenario, layout, topology); });
    const std::size_t arena = backend::arena_bytes(rank::run_groups(layout));
    require_memory(estimate_memory(scenario, layout, geometry, static_cast<std::int64_t>(arena)),
                   placement::read_memory_limits());
    if (!scenario.storage.checkpoint.empty()) rank::Checkpoint(scenario.storage.checkpoint, geometry);
  });
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

}  // namespace

std::vector<Obstacle> preflight(const plan::Plan& plan, bool rehearsal) {
  std::vector<Obstacle> found;
  const placement::Topology topology = placement::read_topology(placement::Devices::skip);
  for (const plan::Arm& arm : plan.arms) {
    check_arm(found, plan.arms.size() > 1 ? arm.name : "", arm.scenario, topology, rehearsal);
  }
  if (plan.arms.empty()) check_arm(found, "", plan.base, topology, rehearsal);
  std::stable_sort(found.begin(), found.end(),
                   [](const Obstacle& a, const Obstacle& b) { return order_of(a.exit) < order_of(b.exit); });
  return found;
}

}  // namespace eb::supervise
