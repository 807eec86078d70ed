#include "harness/measure/slot_values.h"

#include "harness/base/error.h"

namespace eb::measure {

std::vector<StepValues> slot_values(const std::vector<std::span<const rank::EventRecord>>& events,
                                    const plan::Scenario& arm, std::int64_t steps, const plan::RunLayout& layout,
                                    const std::vector<int>& engram_layers) {
  const bool fifo = arm.prefetch.streams == plan::Streams::fifo;
  std::vector<std::vector<RankStep>> ranks(layout.ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r] = build_timeline(events.at(r), fifo, static_cast<int>(r));
    if (static_cast<std::int64_t>(ranks[r].size()) != steps) {
      fail(Exit::failure, "rank {}: {} steps were asked for, events of {} came", r, steps, ranks[r].size());
    }
    // The stub marks where a lookup would be, around nothing: no lookup was measured.
    if (arm.storage.backing == plan::Backing::stub) {
      for (RankStep& step : ranks[r]) step.lookups.clear();
    }
  }
  return StepMetrics(layout, engram_layers).values(ranks);
}

}  // namespace eb::measure
