#include "harness/rank/step/injection.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "harness/base/error.h"

namespace eb::rank {

namespace {

using Durations = std::map<int, std::vector<std::int64_t>>;  // by layer

Durations durations(std::span<const EventRecord> events, EventKind start, EventKind done) {
  std::map<std::tuple<std::uint32_t, std::int16_t>, std::int64_t> begun;
  Durations out;
  for (const EventRecord& one : events) {
    if (one.clock != static_cast<std::uint8_t>(Clock::device)) continue;
    const std::tuple key{one.step, one.layer};
    if (one.kind == static_cast<std::uint16_t>(start)) begun[key] = one.time_ns;
    if (one.kind != static_cast<std::uint16_t>(done)) continue;
    if (const auto found = begun.find(key); found != begun.end()) out[one.layer].push_back(one.time_ns - found->second);
  }
  return out;
}

std::map<int, std::int64_t> of_each(Durations values, bool least) {
  std::map<int, std::int64_t> out;
  for (auto& [layer, list] : values) {
    std::sort(list.begin(), list.end());
    out[layer] = least ? list.front() : list[list.size() / 2];
  }
  return out;
}

}  // namespace

void StageTimes::learn(std::span<const EventRecord> events) {
  if (events.empty()) return;
  lookup_ns_ = of_each(durations(events, EventKind::lookup_start, EventKind::lookup_done), false);
  backbone_ns_ = of_each(durations(events, EventKind::backbone_start, EventKind::backbone_done), false);
  gather_ns_ = of_each(durations(events, EventKind::gather_start, EventKind::gather_done), true);
}

Injection StageTimes::injection(const std::string& stage, double percent, int last_consumer) const {
  Injection out;
  const auto scale = [&](const std::map<int, std::int64_t>& from, std::map<int, std::int64_t>& to, int below) {
    for (const auto& [layer, ns] : from) {
      if (layer < below) to[layer] = std::llround(static_cast<double>(ns) * percent / 100);
    }
    if (to.empty()) {
      fail(Exit::usage, "experiment.inject.stage {}: no slot without extra work has shown such a stage here", stage);
    }
  };
  constexpr int kAll = 1 << 20;
  if (stage == "lookup") scale(lookup_ns_, out.lookup_ns, kAll);
  if (stage == "front") scale(backbone_ns_, out.front_ns, last_consumer);
  if (stage == "gather") scale(gather_ns_, out.gather_ns, kAll);
  return out;
}

}  // namespace eb::rank
