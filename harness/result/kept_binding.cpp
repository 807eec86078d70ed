#include "harness/result/kept_binding.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/rank/bind_process.h"
#include "harness/result/snapshots.h"

namespace eb::result {

namespace {

rank::FoundBinding found_in(const Json& state) {
  rank::FoundBinding found;
  found.cpus = state.value("cpus", std::vector<int>{});
  const Json policy = state.value("task_policy", missing("the snapshot has none"));
  if (policy.is_string()) {
    found.task_policy = policy.get<std::string>();
  } else {
    found.task_policy_reason = policy.value("reason", "");
  }
  return found;
}

}  // namespace

std::vector<supervise::DegradedBinding> newly_lost(const RerollRecord& reroll, const std::string& label) {
  std::vector<supervise::DegradedBinding> lost;
  const auto known = [&reroll](int rank, const std::string& part) {
    const auto same = [&](const supervise::DegradedBinding& one) { return one.rank == rank && one.part == part; };
    return std::any_of(reroll.storage.degraded.begin(), reroll.storage.degraded.end(), same) ||
           std::any_of(reroll.lost_later.begin(), reroll.lost_later.end(), same);
  };
  for (const RankSnapshot& one : parse_snapshots(reroll.storage.snapshots, label)) {
    const auto rank = static_cast<std::size_t>(one.rank);
    if (rank >= reroll.storage.bindings.size()) continue;
    const supervise::RankBinding& asked = reroll.storage.bindings[rank];
    const rank::FoundBinding found = found_in(one.json.value("rank_state", Json::object()));
    for (const control::LostPart& part : rank::lost_parts(asked.cpus, asked.memory_nodes, found)) {
      if (known(one.rank, part.part)) continue;
      lost.push_back({one.rank, part.part, fmt::format("snapshot {}: {}", label, part.text)});
    }
  }
  return lost;
}

}  // namespace eb::result
