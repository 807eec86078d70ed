#include "harness/result/observed_pass.h"

#include <cmath>
#include <map>

#include "harness/result/record.h"
#include "harness/stats/paired.h"
#include "harness/stats/summary.h"

namespace eb::result {

namespace {

std::size_t step_column(const Record& record) {
  for (std::size_t c = 0; c < record.columns.size(); ++c) {
    if (record.columns[c].id == measure::MetricId::step) return c;
  }
  return 0;
}

// Step times of the timed pass of one arm in one re-roll.
std::vector<double> timed_steps(const Record& record, std::size_t arm, int reroll) {
  const std::size_t column = step_column(record);
  std::vector<double> out;
  record.cells->for_each(arm, [&](int in, int, const measure::StepValues& values) {
    if (in != reroll) return;
    for (const auto& replica : values.per_replica) {
      if (!std::isnan(replica[column])) out.push_back(replica[column]);
    }
  });
  return out;
}

// Why a slot has no times; empty: it has.
std::string no_times(const Record& record, const ObservedSlot& one) {
  if (!record.figures_allowed()) return "a check failed or a fault was planted: no figure of this run is shown";
  if (one.kernel_replay) return "kernel_replay: a collector ran kernels again to count";
  if (one.step_us.empty()) return "events were off in this run";
  return "";
}

Json cost(const std::vector<double>& log_ratios) {
  if (log_ratios.size() < 2) return missing("an interval needs two re-rolls with times of both passes");
  const stats::MeanInterval t = stats::t_interval(log_ratios);
  return {{"value", std::exp(t.mean)}, {"low", std::exp(t.interval.low)}, {"high", std::exp(t.interval.high)}};
}

}  // namespace

void Observation::start(std::span<const int> pids) {
  collectors_ = collectors::pass_collectors();
  for (const auto& one : collectors_) one->start(pids);
}

ObservedSlot Observation::stop(const measure::SlotInfo& slot, const std::vector<Json>& facts,
                               const std::vector<measure::StepValues>& values, std::size_t column) {
  ObservedSlot out;
  out.slot = slot;
  for (const auto& one : collectors_) {
    const bool replays = one->replays_kernels();
    out.kernel_replay = out.kernel_replay || replays;
    const Json seen = Json::parse(one->stop(), nullptr, false);
    out.collectors.push_back({{"name", one->name()},
                              {"rank", nullptr},
                              {"kernel_replay", replays},
                              {"seen", seen.is_discarded() ? missing("its answer was no JSON") : seen}});
  }
  collectors_.clear();
  for (std::size_t r = 0; r < facts.size(); ++r) {
    for (const Json& one : facts[r].value("observed", Json::array())) {
      const bool replays = one.value("kernel_replay", false);
      out.kernel_replay = out.kernel_replay || replays;
      out.collectors.push_back({{"name", one.value("name", "?")},
                                {"rank", r},
                                {"kernel_replay", replays},
                                {"seen", one.value("seen", Json::object())}});
    }
  }
  for (const measure::StepValues& step : values) {
    for (const auto& replica : step.per_replica) {
      if (!std::isnan(replica[column])) out.step_us.push_back(replica[column]);
    }
  }
  return out;
}

Json counted_bytes(const Record& record, const std::string& what) {
  Json out = Json::object();
  for (std::size_t a = 0; a < record.plan->arms.size(); ++a) {
    if (record.plan->arms[a].control) continue;
    if (record.plan->base.device.backend == plan::BackendKind::fake) {
      out[record.arm_name(a)] = missing("virtual time moves no bytes");
      continue;
    }
    double bytes = 0;
    std::int64_t steps = 0;
    std::string reason = "no collector counts it";
    for (const ObservedSlot& slot : record.observed) {
      if (slot.slot.plan.arm != a) continue;
      for (const Json& one : slot.collectors) {
        if (!one["rank"].is_null()) continue;  // of one process; traffic is the machine's
        const Json value = one["seen"].is_object() ? one["seen"].value(what, Json()) : Json();
        if (value.is_number()) {
          bytes += value.get<double>();
          steps += slot.slot.plan.steps;
        } else if (value.is_object()) {
          reason = value.value("reason", reason);
        }
      }
    }
    out[record.arm_name(a)] = steps > 0 ? Json(bytes / static_cast<double>(steps)) : missing(reason);
  }
  return out;
}

Json observed_pass_section(const Record& record) {
  Json slots = Json::array();
  std::map<std::size_t, std::vector<double>> log_ratios;
  for (const ObservedSlot& one : record.observed) {
    const std::size_t arm = one.slot.plan.arm;
    const std::string none = no_times(record, one);
    const std::vector<double> timed = none.empty() ? timed_steps(record, arm, one.slot.reroll) : std::vector<double>{};
    Json timed_median = missing(none.empty() ? "the timed pass of this re-roll has no sample" : none);
    Json observed_median = missing(none);
    if (none.empty()) observed_median = stats::median(one.step_us);
    if (!timed.empty()) {
      timed_median = stats::median(timed);
      log_ratios[arm].push_back(stats::log_ratio(stats::median(timed), stats::median(one.step_us)));
    }
    slots.push_back({{"arm", record.arm_name(arm)},
                     {"reroll", one.slot.reroll},
                     {"slot", one.slot.slot},
                     {"steps", one.slot.plan.steps},
                     {"kernel_replay", one.kernel_replay},
                     {"timed_step_us_median", timed_median},
                     {"observed_step_us_median", observed_median},
                     {"collectors", one.collectors}});
  }
  Json arms = Json::array();
  for (std::size_t a = 0; a < record.plan->arms.size(); ++a) {
    if (record.plan->arms[a].control) continue;
    arms.push_back({{"arm", record.arm_name(a)},
                    {"rerolls", log_ratios[a].size()},
                    {"observed_over_timed_step", cost(log_ratios[a])}});
  }
  return {{"asked", record.plan->experiment.observed_pass}, {"cost", arms}, {"slots", slots}};
}

}  // namespace eb::result
