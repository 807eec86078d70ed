// result.json: the order of its sections, and the sections about arms and figures.
#include <algorithm>
#include <cmath>

#include "harness/base/error.h"
#include "harness/result/cells_json.h"
#include "harness/result/judgement.h"
#include "harness/result/lookup_rates.h"
#include "harness/result/pair_figures.h"
#include "harness/result/record.h"

namespace eb::result {

namespace {

constexpr int kSchemaVersion = 1;

std::string slot_arm(const Record& record, const measure::SlotInfo& slot) { return record.arm_name(slot.plan.arm); }

Json event_kinds() {
  Json kinds = Json::array();
  for (int kind = 0; kind < rank::kEventKinds; ++kind) {
    kinds.push_back({{"kind", kind}, {"name", rank::name(static_cast<rank::EventKind>(kind))}});
  }
  return kinds;
}

Json warnings(const Record& record) {
  std::vector<Warning> all = record.warnings;
  const std::vector<Warning> derived = derived_warnings(record);
  all.insert(all.end(), derived.begin(), derived.end());
  Json list = Json::array();
  for (const Warning& one : all) {
    list.push_back({{"code", one.code}, {"text", one.text}, {"next_step", one.next_step}, {"figures", one.figures}});
  }
  return list;
}

Json failures(const Record& record) {
  Json list = Json::array();
  for (const FailureRecord& one : record.failures) {
    list.push_back({{"text", one.text}, {"exit", one.exit}, {"during", one.during}});
  }
  return list;
}

// What a step cost the rank's thread. Waits for earlier steps are left out.
Json host_work(const RankWork& work) {
  if (work.steps == 0 || work.wall_ns == 0) return missing("the rank stated no host times");
  const double enqueue_us = static_cast<double>(work.host_enqueue_ns) / 1000.0;
  const auto steps = static_cast<double>(work.steps);
  const bool counted = work.launches && *work.launches > 0;
  return {{"enqueue_us_per_step", enqueue_us / steps},
          {"wall_us_per_step", static_cast<double>(work.wall_ns) / 1000.0 / steps},
          {"launches_per_step",
           counted ? Json(static_cast<double>(*work.launches) / steps) : missing("launches are counted on GPUs only")},
          {"enqueue_us_per_launch", counted ? Json(enqueue_us / static_cast<double>(*work.launches))
                                            : missing("launches are counted on GPUs only")}};
}

Json rank_work(int rank, const RankWork& work) {
  Json lookups = Json::array();
  for (const auto& [layer, value] : work.lookups) {
    lookups.push_back(value);
    const auto units = work.lookup_units.find(layer);
    lookups.back()["distinct_units_seen"] = units == work.lookup_units.end()
                                                ? missing("the device does not say on which units a lookup ran")
                                                : Json(units->second);
    const std::int64_t located = value.value("located_rows", std::int64_t{0});
    lookups.back()["local_row_share"] =
        located > 0
            ? Json(static_cast<double>(value.value("local_rows", std::int64_t{0})) / static_cast<double>(located))
            : missing(
                  "no row's page was located: no table in host memory, no device node, or move_pages "
                  "is refused");
  }
  Json collectives = Json::array();
  for (const auto& [key, value] : work.collectives) collectives.push_back(value);
  Json padded = nullptr;
  if (work.common_slot_tokens > 0) {
    padded = 1.0 - static_cast<double>(work.own_tokens) / static_cast<double>(work.common_slot_tokens);
  }
  return {{"rank", rank},
          {"steps", work.steps},
          {"own_tokens", work.own_tokens},
          {"common_slot_tokens", work.common_slot_tokens},
          {"padded_share", padded},
          {"runnable_threads", work.threads},
          {"host", host_work(work)},
          {"windows", work.windows},
          {"lookups", lookups},
          {"collectives", collectives},
          {"setup_collectives", work.setup_collectives}};
}

// Why an arm has no value for a metric.
std::string absent_reason(const Record& record, std::size_t arm, const measure::Column& column) {
  if (!record.figures_allowed()) return "a check failed or a fault was planted: no figure of this run is shown";
  if (!record.instrument) return "events were off in this run";
  // Every step has its own time, so an arm without one ran none: the run ended before.
  for (std::size_t c = 0; c < record.columns.size(); ++c) {
    if (record.columns[c].id == measure::MetricId::step && record.cells->pooled(arm, c).empty()) {
      return "the run ended before a timed step of this arm was done";
    }
  }
  const measure::Metric& metric = measure::metric(column.id);
  if (!measure::has_workload(metric, plan::name(record.plan->arms[arm].scenario.workload.kind))) {
    return fmt::format("only workload.kind {} has it", metric.workloads);
  }
  return metric.absent;
}

Json injected(const Record& record, const plan::Arm& arm) {
  const plan::InjectSpec& inject = record.plan->experiment.inject;
  if (inject.stage.empty() || inject.arm != arm.name) return nullptr;
  return {{"stage", inject.stage}, {"percent", inject.percent}};
}

}  // namespace

bool Record::fault_planted() const {
  return plan->base.fault.kind != "none" || std::any_of(plan->arms.begin(), plan->arms.end(), [](const plan::Arm& arm) {
           return arm.scenario.fault.kind != "none";
         });
}

bool Record::figures_allowed() const {
  if (fault_planted()) return false;
  return std::none_of(failures.begin(), failures.end(),
                      [](const FailureRecord& failure) { return failure.exit == static_cast<int>(Exit::bad_data); });
}

Json arms_section(const Record& record) {
  Json list = Json::array();
  for (std::size_t a = 0; a < record.plan->arms.size(); ++a) {
    const plan::Arm& arm = record.plan->arms[a];
    Json overrides = Json::object();
    for (const auto& [key, text] : arm.overrides) overrides[key] = Json::parse(text, nullptr, false);
    for (auto& [key, value] : overrides.items()) {
      if (value.is_discarded()) value = arm.overrides.at(key);
    }
    Json work = Json::array();
    if (record.figures_allowed() && a < record.work.size()) {
      for (const auto& [rank, one] : record.work[a]) work.push_back(rank_work(rank, one));
    }
    const auto uncoupled = record.replicas_uncoupled.find(a);
    list.push_back(
        {{"name", arm.name},
         {"control", arm.control},
         {"overrides", overrides},
         {"joint_keys", arm.joint_keys},
         {"provenance", {{"kind", arm.research ? "research" : "stock"}, {"text", arm.provenance}}},
         {"injected", injected(record, arm)},
         {"replicas_uncoupled", uncoupled == record.replicas_uncoupled.end() ? Json(nullptr) : Json(uncoupled->second)},
         {"work_per_rank", work}});
  }
  return list;
}

Json cells_section(const Record& record) {
  Json list = Json::array();
  if (!record.cells || !record.figures_allowed()) return list;
  for (std::size_t a = 0; a < record.plan->arms.size(); ++a) {
    for (std::size_t c = 0; c < record.columns.size(); ++c) {
      const std::string reason = absent_reason(record, a, record.columns[c]);
      Json cell = {{"arm", record.arm_name(a)},
                   {"metric", record.columns[c].name},
                   {"unit", measure::metric(record.columns[c].id).unit}};
      cell.update(cell_statistics(record.cells->pooled(a, c), reason));
      Json blocks = Json::array();
      for (const measure::BlockMedian& block : record.cells->blocks(a, c)) {
        blocks.push_back({{"reroll", block.reroll},
                          {"block", block.block},
                          {"n", block.summary.n},
                          {"median", block.summary.median}});
      }
      Json replicas = Json::array();
      Json ranks = Json::array();
      if (cell["n"] != 0) {
        const auto spread = [](const char* key, std::size_t index, const std::vector<double>& values) {
          Json one = {{key, index}, {"n", values.size()}, {"median", nullptr}, {"q1", nullptr}, {"q3", nullptr}};
          if (values.empty()) return one;
          const stats::Summary summary = stats::summarize(values);
          one["median"] = summary.median;
          one["q1"] = summary.q1;
          one["q3"] = summary.q3;
          return one;
        };
        for (std::size_t r = 0; r < static_cast<std::size_t>(record.plan->arms[a].scenario.parallel.dp); ++r) {
          replicas.push_back(spread("replica", r, record.cells->of_replica(a, c, r)));
        }
        for (std::size_t r = 0; r < record.layouts[a].ranks.size(); ++r) {
          ranks.push_back(spread("rank", r, record.cells->of_rank(a, c, r)));
        }
      }
      cell["blocks"] = blocks;
      cell["per_replica"] = replicas;
      cell["per_rank"] = ranks;
      list.push_back(std::move(cell));
    }
  }
  return list;
}

Judgement judgement_of(const Record& record, const Json& evidence) {
  // While the run goes on nothing is judged; after a failed check there are no figures to judge.
  if (!record.after || !record.cells || !record.figures_allowed()) return {};
  std::vector<std::string> arms;
  for (const plan::Arm& arm : record.plan->arms) arms.push_back(arm.name);
  return judge(evidence, samples_of(*record.cells, arms, record.columns));
}

std::optional<Precision> precision_of(const Record& record) {
  const Json evidence = evidence_section(record);
  std::vector<std::string> arms;
  for (const plan::Arm& arm : record.plan->arms) arms.push_back(arm.name);
  const Samples samples = samples_of(*record.cells, arms, record.columns);
  const PairFigures figures(evidence, samples);
  Precision widest;
  const Json& judged = evidence.at("arms");
  for (std::size_t i = 1; i < judged.size(); ++i) {
    const evidence::Finding finding =
        figures.judge(judged[0].get<std::string>(), judged[i].get<std::string>(), record.plan->experiment.primary);
    if (!finding.interval) return std::nullopt;
    widest.half_width = std::max(widest.half_width, std::log(finding.interval->high / finding.interval->low) / 2);
    widest.delta = finding.delta;
  }
  return judged.size() < 2 ? std::nullopt : std::optional(widest);
}

Json checks_section(const Record& record) {
  Json slots = Json::array();
  std::int64_t ids = 0;
  std::int64_t rows = 0;
  std::int64_t mismatches = 0;
  for (const CheckRecord& one : record.checks) {
    ids += one.ids_compared;
    rows += one.rows_compared;
    mismatches += one.mismatches;
    slots.push_back({{"slot", one.slot},
                     {"arm", one.arm},
                     {"when", one.when},
                     {"ids_compared", one.ids_compared},
                     {"rows_compared", one.rows_compared},
                     {"mismatches", one.mismatches},
                     {"hidden_tokens", one.hidden_tokens},
                     {"hidden_max_error", one.hidden_max_error ? Json(*one.hidden_max_error) : Json(nullptr)},
                     {"hidden_bound", one.hidden_bound ? Json(*one.hidden_bound) : Json(nullptr)},
                     {"rows_sha256", one.rows_sha256},
                     {"hidden_sha256", one.hidden_sha256}});
  }
  const bool failed = std::any_of(record.failures.begin(), record.failures.end(), [](const FailureRecord& failure) {
    return failure.exit == static_cast<int>(Exit::bad_data);
  });
  Json passed = nullptr;  // nothing was checked: neither passed nor failed
  if (failed || mismatches > 0)
    passed = false;
  else if (!record.checks.empty())
    passed = true;
  return {{"passed", passed},
          {"ids_compared", ids},
          {"rows_compared", rows},
          {"mismatches", failed ? Json(nullptr) : Json(mismatches)},
          {"slots", slots}};
}

Json slots_section(const Record& record) {
  Json list = Json::array();
  for (const measure::SlotInfo& slot : record.slots) {
    const bool windows = slot.plan.kind == measure::SlotKind::calibration ||
                         record.plan->arms[slot.plan.arm].scenario.workload.kind == plan::WorkloadKind::lookup;
    list.push_back(
        {{"slot", slot.slot},
         {"kind", measure::name(slot.plan.kind)},
         {"arm", slot_arm(record, slot)},
         {"reroll", slot.reroll},
         {"block", slot.plan.block < 0 ? Json(nullptr) : Json(slot.plan.block)},
         {"position", slot.plan.position < 0 ? Json(nullptr) : Json(slot.plan.position)},
         {"first_step", slot.first_step},
         {"steps", slot.plan.steps},
         {"window_launches", windows ? Json(slot.window_launches) : Json(nullptr)},
         {"wall_us",
          record.figures_allowed() ? Json(static_cast<double>(slot.end_ns - slot.start_ns) / 1000.0) : Json(nullptr)}});
  }
  return list;
}

Json result_document(const Record& record) {
  Json document;
  document["schema"] = "engram-bench/result";
  document["schema_version"] = kSchemaVersion;
  document["complete"] = record.complete;
  document["name"] = record.plan->base.name;
  document["question"] = record.plan->base.question;
  document["context"] = context_section(record);
  document["topology"] = topology_section(record.topology);
  document["effective"] = effective_section(record);
  document["conditions"] = conditions_section(record);
  document["ledger"] = ledger_section(record);
  document["placement"] = placement_section(record);
  document["startup"] = startup_section(record);
  document["checks"] = checks_section(record);
  document["arms"] = arms_section(record);
  document["cells"] = cells_section(record);
  document["lookup_rates"] = lookup_rates(document["cells"]);
  document["evidence"] = evidence_section(record);
  const Judgement judgement = judgement_of(record, document["evidence"]);
  document["comparisons"] = judgement.comparisons;
  document["hypotheses"] = judgement.hypotheses;
  document["grid_caps"] = judgement.grid_caps;
  document["observed_pass"] = observed_pass_section(record);
  document["warnings"] = warnings(record);
  document["failures"] = failures(record);
  document["slots"] = slots_section(record);
  Json warm_ups = Json::array();
  for (const measure::WarmUp& one : record.warm_ups) {
    if (!record.figures_allowed()) break;
    warm_ups.push_back({{"arm", record.arm_name(one.arm)},
                        {"reroll", one.reroll},
                        {"steps", one.steps},
                        {"window_step_us", one.window_step_us},
                        {"slope", one.slope ? Json(*one.slope) : missing("fewer than three windows")},
                        {"steady", one.steady}});
  }
  document["warm_up"] = warm_ups;
  document["event_kinds"] = event_kinds();
  return document;
}

}  // namespace eb::result
