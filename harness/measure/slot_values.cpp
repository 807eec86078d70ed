#include "harness/measure/slot_values.h"

#include <algorithm>

#include "harness/base/error.h"

namespace eb::measure {

namespace {

// Steps of a rank that the workload leaves idle.
std::vector<RankStep> idle_steps(std::int64_t count) {
  std::vector<RankStep> steps(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i].step = static_cast<std::uint32_t>(i);
  return steps;
}

// How many launches and stored rows stand behind the times of a rank's lookups: real tokens of all replicas that the
// shard serves, times its columns.
void set_work(const plan::Scenario& scenario, const plan::RankPlace& place, const plan::RunLayout& layout,
              std::int64_t first_step, std::int64_t launches, std::vector<RankStep>& steps) {
  std::vector<int> replicas = {place.replica};
  if (scenario.parallel.table_mode == plan::TableMode::dp_sharded) {
    for (const std::vector<int>& group : layout.edp_groups) {
      if (std::find(group.begin(), group.end(), place.rank) == group.end()) continue;
      replicas.clear();
      for (const int rank : group) replicas.push_back(layout.ranks.at(static_cast<std::size_t>(rank)).replica);
    }
  }
  for (RankStep& step : steps) {
    std::int64_t tokens = 0;
    for (const int replica : replicas) tokens += scenario.workload.step_tokens(replica, first_step + step.step);
    const auto set = [&](auto& spans) {
      for (auto& one : spans) {
        one.launches = launches;
        one.rows = tokens * place.shard.columns;
      }
    };
    set(step.lookups);
    set(step.bare);
  }
}

}  // namespace

std::vector<StepValues> slot_values(const std::vector<std::span<const rank::EventRecord>>& events,
                                    const plan::Scenario& arm, const SlotShape& shape, const plan::RunLayout& layout,
                                    const std::vector<int>& engram_layers) {
  const bool fifo = arm.prefetch.streams == plan::Streams::fifo;
  std::vector<std::vector<RankStep>> ranks(layout.ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::int64_t launches = shape.window_launches.empty() ? 1 : shape.window_launches.at(r);
    ranks[r] = launches == 0 ? idle_steps(shape.steps) : build_timeline(events.at(r), fifo, static_cast<int>(r));
    if (static_cast<std::int64_t>(ranks[r].size()) != shape.steps) {
      fail(Exit::failure, "rank {}: {} steps were asked for, events of {} came", r, shape.steps, ranks[r].size());
    }
    set_work(arm, layout.ranks[r], layout, shape.first_step, launches, ranks[r]);
    // The stub marks where a lookup would be, around nothing: no lookup was measured.
    if (arm.storage.backing == plan::Backing::stub) {
      for (RankStep& step : ranks[r]) step.lookups.clear();
    }
  }
  return StepMetrics(layout, engram_layers).values(ranks, arm.workload.kind == plan::WorkloadKind::lookup);
}

}  // namespace eb::measure
