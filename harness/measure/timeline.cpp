#include "harness/measure/timeline.h"

#include <algorithm>
#include <map>

#include "harness/base/error.h"

namespace eb::measure {

namespace {

using rank::Clock;
using rank::EventKind;
using rank::EventRecord;

// Staging has one buffer a layer: a lookup overwrites what the step before it read.
constexpr std::size_t kStagingBuffers = 1;

struct Place {
  int rank;
  std::uint16_t slot;
  std::uint32_t step;
};

void set(std::int64_t& field, std::int64_t value, const char* what, const Place& place) {
  if (field != kNoTime) {
    fail(Exit::failure, "rank {}: slot {} step {} has the event {} twice", place.rank, place.slot, place.step, what);
  }
  field = value;
}

template <typename T>
T& entry(std::vector<T>& entries, int layer) {
  for (T& one : entries) {
    if (one.layer == layer) return one;
  }
  entries.emplace_back();
  entries.back().layer = layer;
  return entries.back();
}

CollectiveTimes& collective(RankStep& step, Collective object, int layer) {
  for (CollectiveTimes& one : step.collectives) {
    if (one.object == object && one.layer == layer) return one;
  }
  step.collectives.push_back({object, layer, kNoTime, kNoTime});
  return step.collectives.back();
}

struct HostTimes {  // of a lookup: when the host submitted it
  std::map<int, std::int64_t> submitted;
};

void take_host(const EventRecord& event, RankStep& step, HostTimes& host) {
  switch (static_cast<EventKind>(event.kind)) {
    case EventKind::lookup_start:
      host.submitted[event.layer] = event.time_ns;
      break;
    case EventKind::consumer_resumed:
      entry(step.lookups, event.layer).next_enqueued_ns = event.time_ns;
      break;
    default:
      break;
  }
}

void take_device(const EventRecord& event, RankStep& step, const Place& place) {
  const auto kind = static_cast<EventKind>(event.kind);
  const std::int64_t time = event.time_ns;
  const int layer = event.layer;
  const char* what = rank::name(kind);
  switch (kind) {
    case EventKind::step_start:
      set(step.start_ns, time, what, place);
      break;
    case EventKind::ids_ready:
      set(step.ids_ready_ns, time, what, place);
      break;
    case EventKind::id_exchange_start:
      set(collective(step, Collective::ids, layer).arrival_ns, time, what, place);
      break;
    case EventKind::id_exchange_done:
      set(collective(step, Collective::ids, layer).done_ns, time, what, place);
      break;
    case EventKind::release:
      set(entry(step.lookups, layer).release_ns, time, what, place);
      break;
    case EventKind::lookup_start:
      set(entry(step.lookups, layer).start_ns, time, what, place);
      break;
    case EventKind::lookup_done:
      set(entry(step.lookups, layer).done_ns, time, what, place);
      break;
    case EventKind::consumer_arrival:
      set(entry(step.lookups, layer).arrival_ns, time, what, place);
      break;
    case EventKind::consumer_resumed:
      set(entry(step.lookups, layer).resumed_ns, time, what, place);
      break;
    case EventKind::row_exchange_start:
      set(collective(step, Collective::rows, layer).arrival_ns, time, what, place);
      break;
    case EventKind::row_exchange_done:
      set(collective(step, Collective::rows, layer).done_ns, time, what, place);
      break;
    case EventKind::gather_start:
      set(collective(step, Collective::heads, layer).arrival_ns, time, what, place);
      break;
    case EventKind::gather_done:
      set(collective(step, Collective::heads, layer).done_ns, time, what, place);
      break;
    case EventKind::wkv_start:
      set(entry(step.gates, layer).wkv_start_ns, time, what, place);
      break;
    case EventKind::wkv_done:
      set(entry(step.gates, layer).wkv_done_ns, time, what, place);
      break;
    case EventKind::wkv_gather_start:
      set(collective(step, Collective::wkv, layer).arrival_ns, time, what, place);
      break;
    case EventKind::wkv_gather_done:
      set(collective(step, Collective::wkv, layer).done_ns, time, what, place);
      break;
    case EventKind::gate_done:
      set(entry(step.gates, layer).gate_done_ns, time, what, place);
      break;
    case EventKind::backbone_start:
      set(entry(step.backbone, layer).start_ns, time, what, place);
      break;
    case EventKind::backbone_done:
      set(entry(step.backbone, layer).done_ns, time, what, place);
      break;
    case EventKind::expert_start:
      set(collective(step, Collective::expert, layer).arrival_ns, time, what, place);
      break;
    case EventKind::expert_done:
      set(collective(step, Collective::expert, layer).done_ns, time, what, place);
      break;
    case EventKind::step_done:
      set(step.done_ns, time, what, place);
      break;
    case EventKind::launch_start:
      set(entry(step.singles, layer).start_ns, time, what, place);
      break;
    case EventKind::launch_done:
      set(entry(step.singles, layer).done_ns, time, what, place);
      break;
    case EventKind::bare_start:
      set(entry(step.bare, layer).start_ns, time, what, place);
      break;
    case EventKind::bare_done:
      set(entry(step.bare, layer).done_ns, time, what, place);
      break;
    case EventKind::control_start:
      set(step.control_start_ns, time, what, place);
      break;
    case EventKind::control_done:
      set(step.control_done_ns, time, what, place);
      break;
  }
}

// The last operation of `step` that reads the layer's staging: the collective that follows the wait, else wkv.
std::int64_t last_reader(const RankStep& step, int layer) {
  std::int64_t time = kNoTime;
  for (const CollectiveTimes& one : step.collectives) {
    if (one.layer == layer && (one.object == Collective::rows || one.object == Collective::heads)) {
      time = std::max(time, one.done_ns);
    }
  }
  if (time != kNoTime) return time;
  for (const GateTimes& gate : step.gates) {
    if (gate.layer == layer) time = std::max(time, gate.wkv_done_ns);
  }
  return time;
}

void check_order(std::int64_t start, std::int64_t done, const char* what, const Place& place) {
  if (start != kNoTime && done != kNoTime && done < start) {
    fail(Exit::failure, "rank {}: slot {} step {}: {} ends {} ns before it begins", place.rank, place.slot, place.step,
         what, start - done);
  }
}

void check(const RankStep& step, int rank) {
  const Place place{rank, step.slot, step.step};
  for (const Span& one : step.singles) check_order(one.start_ns, one.done_ns, "a lone launch", place);
  for (const Span& one : step.bare) check_order(one.start_ns, one.done_ns, "a bare gather", place);
  if (!step.bare.empty()) return;  // windows of it are no steps
  if (step.start_ns == kNoTime || step.done_ns == kNoTime) {
    fail(Exit::failure, "rank {}: slot {} step {} has no {} event", rank, step.slot, step.step,
         step.start_ns == kNoTime ? "step_start" : "step_done");
  }
  check_order(step.start_ns, step.done_ns, "the step", place);
  for (const LookupTimes& one : step.lookups) {
    check_order(one.start_ns, one.done_ns, "a lookup", place);
    check_order(one.arrival_ns, one.resumed_ns, "a consumer's wait", place);
  }
  for (const CollectiveTimes& one : step.collectives) check_order(one.arrival_ns, one.done_ns, "a collective", place);
  for (const LayerTimes& one : step.backbone) check_order(one.start_ns, one.done_ns, "a backbone layer", place);
}

}  // namespace

bool LookupTimes::complete() const noexcept {
  return ready_ns != kNoTime && start_ns != kNoTime && done_ns != kNoTime && arrival_ns != kNoTime;
}

std::int64_t LookupTimes::fifo_residual_ns() const noexcept { return start_ns - std::max(ready_ns, previous_done_ns); }

std::int64_t main_free_ns(const LookupTimes& lookup) noexcept {
  return std::max(lookup.arrival_ns, lookup.next_enqueued_ns);
}

ExposedWait split_wait(const LookupTimes& lookup, std::int64_t peer_free_ns) noexcept {
  ExposedWait wait;
  std::int64_t from = lookup.arrival_ns;
  const std::int64_t until = std::max(lookup.done_ns, from);
  const auto cut = [&](std::int64_t at) {
    const std::int64_t place = std::clamp(at, from, until);
    const std::int64_t part = place - from;
    from = place;
    return part;
  };
  wait.host_late_ns = cut(lookup.next_enqueued_ns);
  wait.peer_late_ns = cut(peer_free_ns);
  wait.other_ns = cut(lookup.inputs_ready_ns);
  wait.recoverable_ns = until - from;
  return wait;
}

std::vector<RankStep> build_timeline(std::span<const EventRecord> events, bool fifo, int rank) {
  std::vector<RankStep> steps;
  if (events.empty()) return steps;
  std::uint32_t first = events.front().step;
  std::uint32_t last = first;
  for (const EventRecord& event : events) {
    first = std::min(first, event.step);
    last = std::max(last, event.step);
  }
  if (static_cast<std::size_t>(last - first) > events.size()) {
    fail(Exit::failure, "rank {}: {} events name steps {} to {}", rank, events.size(), first, last);
  }
  steps.resize(static_cast<std::size_t>(last - first) + 1);
  std::vector<HostTimes> host(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].step = first + static_cast<std::uint32_t>(i);
    steps[i].slot = events.front().slot;
  }
  for (const EventRecord& event : events) {
    if (event.kind >= rank::kEventKinds) fail(Exit::failure, "rank {}: an event of unknown kind {}", rank, event.kind);
    const std::size_t i = event.step - first;
    if (static_cast<Clock>(event.clock) == Clock::host) {
      take_host(event, steps[i], host[i]);
    } else {
      take_device(event, steps[i], {rank, event.slot, event.step});
    }
  }
  std::int64_t previous_done = kNoTime;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    RankStep& step = steps[i];
    check(step, rank);
    std::sort(step.lookups.begin(), step.lookups.end(),
              [](const LookupTimes& a, const LookupTimes& b) { return a.layer < b.layer; });
    for (LookupTimes& lookup : step.lookups) {
      lookup.inputs_ready_ns = step.ids_ready_ns;
      const auto submitted = host[i].submitted.find(lookup.layer);
      if (submitted != host[i].submitted.end()) {
        lookup.inputs_ready_ns = std::max(lookup.inputs_ready_ns, submitted->second);
      }
      if (i >= kStagingBuffers) {
        lookup.inputs_ready_ns =
            std::max(lookup.inputs_ready_ns, last_reader(steps[i - kStagingBuffers], lookup.layer));
      }
      lookup.ready_ns = std::max(lookup.inputs_ready_ns, lookup.release_ns);
      if (fifo) {
        lookup.previous_done_ns = previous_done;
        previous_done = lookup.done_ns;
      }
    }
  }
  return steps;
}

}  // namespace eb::measure
