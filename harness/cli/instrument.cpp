#include "harness/cli/instrument.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/cuda/cuda.h"
#include "harness/base/error.h"
#include "harness/rank/backend_factory.h"
#include "harness/result/json_value.h"
#include "harness/stats/paired.h"
#include "harness/stats/summary.h"
#include "harness/supervise/reroll.h"

namespace eb::cli {

namespace {

constexpr int kPairs = 16;
constexpr std::int64_t kMinimumSteps = 8;
constexpr std::int64_t kEvents = 20'000;
constexpr std::int64_t kCudaEvents = 800;  // a stream takes about a thousand entries before the host has to wait

struct EventCost {
  double host_ns = 0;    // of the call that enqueues it
  double stream_ns = 0;  // of the stream that reaches it
};

// Events recorded behind work that keeps the stream busy until all are enqueued: the distance between two of them is
// what one adds to a step.
EventCost event_cost(const std::unique_ptr<backend::Backend>& backend, std::int64_t count) {
  const backend::StreamId stream = backend->create_stream("cost");
  std::vector<double> host;
  std::vector<double> device;
  for (int round = 0; round < 5; ++round) {
    backend->busy(stream, {backend::OpKind::inject, -1}, 20'000'000);
    std::vector<backend::EventId> events;
    for (std::int64_t i = 0; i < count; ++i) {
      events.push_back(backend->new_event());
      backend->record(stream, events.back());
    }
    backend->synchronize();
    const backend::EventTimes first = backend->times(events.front());
    const backend::EventTimes last = backend->times(events.back());
    host.push_back(static_cast<double>(last.enqueue_ns - first.enqueue_ns) / static_cast<double>(count - 1));
    device.push_back(static_cast<double>(last.device_ns - first.device_ns) / static_cast<double>(count - 1));
    backend->reset_events();
  }
  return {stats::median(host), stats::median(device)};
}

struct SlotTimes {
  double interval_us = 0;      // from a step's end to the next one's, mean over the slot, the slowest rank's
  double events_per_step = 0;  // the largest of the ranks
};

SlotTimes slot_times(const std::vector<supervise::SlotReport>& reports, std::int64_t steps) {
  SlotTimes times;
  for (const supervise::SlotReport& report : reports) {
    std::int64_t first = 0;
    std::int64_t last = 0;
    std::int64_t ends = 0;
    for (const rank::EventRecord& event : report.events) {
      if (event.kind != static_cast<std::uint16_t>(rank::EventKind::step_done)) continue;
      if (event.clock != static_cast<std::uint8_t>(rank::Clock::device)) continue;
      first = ends == 0 ? event.time_ns : std::min(first, event.time_ns);
      last = ends == 0 ? event.time_ns : std::max(last, event.time_ns);
      ++ends;
    }
    if (ends != steps) fail(Exit::failure, "rank {}: {} steps were run, {} ended", report.rank, steps, ends);
    const double interval = static_cast<double>(last - first) / 1000.0 / static_cast<double>(steps - 1);
    times.interval_us = std::max(times.interval_us, interval);
    times.events_per_step =
        std::max(times.events_per_step, static_cast<double>(report.events.size()) / 2.0 / static_cast<double>(steps));
  }
  return times;
}

// One set of ranks, and where its token streams stand.
class Side {
 public:
  Side(const plan::Scenario& scenario, const plan::RunLayout& layout, const supervise::Options& options)
      : scenario_(scenario), reroll_(scenario, layout, options) {}
  SlotTimes run(std::int64_t steps) {
    control::RunSlot slot;
    slot.slot = slot_++;
    slot.prefetch_json = plan::to_json(scenario_);
    slot.steps = steps;
    slot.first_step = next_;
    next_ += steps;
    return slot_times(reroll_.run_slot(slot), steps);
  }
  void end() { reroll_.tear_down(); }

 private:
  const plan::Scenario& scenario_;
  supervise::Reroll reroll_;
  std::uint16_t slot_ = 0;
  std::int64_t next_ = 0;
};

}  // namespace

int measure_instrumentation(const plan::Plan& plan, const plan::RunLayout& layout, std::int64_t timeout_ms,
                            bool allow_degraded, bool json) {
  const plan::Scenario& scenario = plan.arms.front().scenario;
  const plan::BackendKind kind = rank::resolve_backend(scenario.device.backend);
  if (kind == plan::BackendKind::fake) {
    fail(Exit::usage, "--instrument both: virtual time costs nothing; use device.backend cpu or cuda");
  }
  const std::int64_t steps = std::max(kMinimumSteps, scenario.workload.steps);
  supervise::Options options;
  options.timeout_ms = timeout_ms;
  options.allow_degraded = allow_degraded;
  options.instrument = false;
  Side off(scenario, layout, options);
  options.instrument = true;
  Side on(scenario, layout, options);
  (void)off.run(steps);  // warm-up of both
  (void)on.run(steps);
  std::vector<double> off_us;
  std::vector<double> on_us;
  double events = 0;
  double events_off = 0;
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto run_off = [&] {
      const SlotTimes times = off.run(steps);
      off_us.push_back(times.interval_us);
      events_off = times.events_per_step;
    };
    if (pair % 2 == 0) run_off();
    const SlotTimes times = on.run(steps);
    on_us.push_back(times.interval_us);
    events = times.events_per_step;
    if (pair % 2 != 0) run_off();
  }
  on.end();
  off.end();
  const bool cuda = kind == plan::BackendKind::cuda;
  const EventCost cost =
      event_cost(cuda ? backend::cuda::make_backend({}) : backend::make_cpu_backend({}), cuda ? kCudaEvents : kEvents);
  const auto effect = stats::paired_effect(off_us, on_us);
  const double step_us = stats::median(on_us);
  const double added = events - events_off;
  const double share = added * cost.stream_ns / 1000.0 / step_us;
  if (json) {
    fmt::print("{}\n",
               result::dump({{"name", plan.base.name},
                             {"pairs", kPairs},
                             {"steps_per_slot", steps},
                             {"step_off_us", stats::median(off_us)},
                             {"step_on_us", step_us},
                             {"on_over_off", {{"ratio", effect->ratio}, {"low", effect->low}, {"high", effect->high}}},
                             {"event_stream_ns", cost.stream_ns},
                             {"event_host_ns", cost.host_ns},
                             {"events_per_step", events},
                             {"events_per_step_off", events_off},
                             {"events_share_of_step", share}}));
  } else {
    fmt::print(
        "{}: step {:.1f} us without and {:.1f} us with events\n"
        "  ratio {:.4f} [{:.4f}-{:.4f}] (95 %, t over {} pairs of slots of {} steps)\n"
        "  one event: {:.0f} ns on its stream, {:.0f} ns of the host's time; {:.0f} events a step, {:.0f} of them with "
        "events off\n"
        "  events added times their cost: {:.4f} % of the step\n",
        plan.base.name, stats::median(off_us), step_us, effect->ratio, effect->low, effect->high, kPairs, steps,
        cost.stream_ns, cost.host_ns, events, events_off, share * 100);
  }
  return static_cast<int>(Exit::ok);
}

}  // namespace eb::cli
