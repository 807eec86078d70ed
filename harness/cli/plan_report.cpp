#include "harness/cli/plan_report.h"

#include <sched.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/backend/backend.h"
#include "harness/engram/ledger.h"
#include "harness/rank/step/step_runner.h"
#include "harness/replay/token_model.h"
#include "harness/supervise/binding.h"
#include "placement/backing.h"
#include "placement/topology.h"

namespace eb::cli {

namespace {

using Json = nlohmann::ordered_json;

int allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

ArmReport make_arm_report(const plan::Arm& arm, const placement::Topology& topology) {
  ArmReport report;
  report.arm = &arm;
  const plan::Scenario& scenario = arm.scenario;
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, scenario.model.table_scale);
  report.layout = supervise::layout_here(scenario, geometry, topology);
  const auto arena = static_cast<std::int64_t>(backend::arena_bytes(rank::run_groups(report.layout)));
  report.memory = supervise::estimate_memory(scenario, report.layout, geometry, arena);
  return report;
}

// Arms mostly share their token model: each is read once.
void check_tokens(const plan::Plan& plan) {
  std::vector<std::string> seen;
  for (const plan::Arm& arm : plan.arms) {
    const plan::TokenSpec& tokens = arm.scenario.workload.tokens;
    const std::string text = fmt::format("{} {} {} {} {}", plan::name(tokens.kind), tokens.file, tokens.map,
                                         tokens.constant, arm.scenario.model.base.compressed_vocab);
    if (std::find(seen.begin(), seen.end(), text) != seen.end()) continue;
    seen.push_back(text);
    static_cast<void>(replay::make_token_model(tokens, arm.scenario.model.base));
  }
}

std::vector<std::string> notes_of(const plan::Plan& plan) {
  std::vector<std::string> notes;
  const auto any = [&](auto holds) {
    return std::any_of(plan.arms.begin(), plan.arms.end(), [&](const plan::Arm& arm) { return holds(arm.scenario); });
  };
  if (any([](const plan::Scenario& s) { return !s.model.backbone.preset.empty(); })) {
    notes.emplace_back(
        "the backbone is a stand-in: matrix products of the stated bytes and arithmetic, for 16 G active parameters at "
        "scale 1");
  }
  if (any([](const plan::Scenario& s) { return s.parallel.dp > 1 && s.parallel.ep == 1; })) {
    notes.emplace_back("replicas_uncoupled: parallel.ep is 1, so no expert exchange ties the replicas together");
  }
  if (any([](const plan::Scenario& s) { return s.fault.kind != "none"; })) {
    notes.emplace_back("a fault is planted: the result gives no figures");
  }
  if (plan.experiment.pairs == 1) notes.emplace_back("no verdict: one pair");
  return notes;
}

// What vLLM does in place of an error, after the facts this project reproduces.
std::string vllm_text(const plan::Plan& plan, const std::vector<supervise::Obstacle>& obstacles) {
  const bool shared = std::any_of(plan.arms.begin(), plan.arms.end(), [](const plan::Arm& arm) {
    return arm.scenario.parallel.table_mode == plan::TableMode::shared;
  });
  if (obstacles.empty()) return "";
  if (!shared) return "a failed allocation or registration is an error there too";
  return "a failed precheck (no peers on the host, IPC not shared, too little /dev/shm) may fall back to private "
         "tables "
         "or to dp_sharded, which are other baselines; a failed allocation or registration is an error. engram-bench "
         "never falls back";
}

Json integers(const std::vector<int>& values) { return Json(values); }

Json layout_json(const plan::RunLayout& layout) {
  Json json{
      {"edp_group_size", layout.edp_group_size}, {"tp_groups", layout.tp_groups}, {"edp_groups", layout.edp_groups},
      {"ep_groups", layout.ep_groups},           {"ranks", Json::array()},        {"backings", Json::array()}};
  for (const plan::RankPlace& place : layout.ranks) {
    Json rows = Json::array();
    for (const engram::RowRange& range : place.shard.rows) {
      rows.push_back(Json{{"first", range.first}, {"count", range.count}});
    }
    json["ranks"].push_back(Json{{"rank", place.rank},
                                 {"dp", place.replica},
                                 {"tp", place.tp_rank},
                                 {"edp", place.edp_rank},
                                 {"shard", place.shard.index},
                                 {"shards", place.shard.shards},
                                 {"first_column", place.shard.first_column},
                                 {"columns", place.shard.columns},
                                 {"rows", rows},
                                 {"backing", place.backing}});
  }
  for (const plan::BackingPlace& backing : layout.backings) {
    json["backings"].push_back(Json{{"leader", backing.leader},
                                    {"readers", integers(backing.readers)},
                                    {"bytes", backing.bytes},
                                    {"node", backing.node < 0 ? Json() : Json(backing.node)}});
  }
  return json;
}

Json memory_json(const supervise::MemoryEstimate& memory) {
  return Json{{"table_bytes", memory.table_bytes},
              {"weight_bytes", memory.weight_bytes},
              {"buffer_bytes", memory.buffer_bytes},
              {"message_bytes", memory.arena_bytes},
              {"process_bytes", memory.process_bytes},
              {"record_bytes", memory.record_bytes},
              {"shm_file_bytes", memory.need.shm_file_bytes},
              {"huge_page_pool_bytes", memory.pool_bytes},
              {"total_bytes", memory.total_bytes()}};
}

Json arm_json(const ArmReport& report) {
  const plan::Arm& arm = *report.arm;
  Json overrides = Json::object();
  for (const auto& [key, text] : arm.overrides) overrides[key] = Json::parse(text);
  return Json{{"name", arm.name},
              {"control", arm.control},
              {"overrides", overrides},
              {"provenance", arm.research ? "research" : "stock"},
              {"provenance_text", arm.provenance},
              {"effective", layout_json(report.layout)},
              {"memory", memory_json(report.memory)}};
}

std::string seconds_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  return seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

std::string time_text(const TimeEstimate& time) {
  if (!time.low_s.has_value()) return fmt::format("time      not estimated: {}\n", time.reason);
  return fmt::format("time      {} to {} ({})\n", seconds_text(*time.low_s), seconds_text(*time.high_s), time.reason);
}

std::string arm_text(const ArmReport& report) {
  const plan::Arm& arm = *report.arm;
  std::string changes;
  for (const auto& [key, text] : arm.overrides)
    changes += fmt::format("{}{}={}", changes.empty() ? "" : " ", key, text);
  return fmt::format("{} {:<12} {}\n    {}: {}\n    {} in all: {}\n", arm.control ? "control" : "arm    ", arm.name,
                     changes, arm.research ? "research" : "stock", arm.provenance,
                     placement::human_bytes(report.memory.total_bytes()), report.memory.text());
}

std::string layout_text(const ArmReport& report) {
  const plan::Scenario& scenario = report.arm->scenario;
  std::string text =
      fmt::format("layout    {} ranks: TP {} x DP {}, {}, EDP groups of {}{}\n", scenario.ranks(), scenario.parallel.tp,
                  scenario.parallel.dp, plan::name(scenario.parallel.table_mode), report.layout.edp_group_size,
                  scenario.parallel.ep > 1 ? fmt::format(", EP {}", scenario.parallel.ep) : "");
  for (const plan::BackingPlace& backing : report.layout.backings) {
    text += fmt::format("    backing {}: {}{}, leader rank {}, read by {}\n", backing.index,
                        placement::human_bytes(backing.bytes),
                        backing.node < 0 ? "" : fmt::format(" on NUMA node {}", backing.node), backing.leader,
                        fmt::join(backing.readers, " "));
  }
  return text;
}

}  // namespace

PlanReport make_plan_report(const plan::Plan& plan) {
  PlanReport report;
  const placement::Topology topology = placement::read_topology(placement::Devices::skip);
  check_tokens(plan);
  for (const plan::Arm& arm : plan.arms) report.arms.push_back(make_arm_report(arm, topology));
  report.time = estimate_time(plan, report.arms, allowed_cpus());
  report.obstacles = supervise::preflight(plan);
  report.notes = notes_of(plan);
  plan::Plan here = plan;
  supervise::skip_controls(here);
  for (const plan::SkippedControl& one : here.skipped_controls) {
    report.notes.push_back(fmt::format("control {} is left out on this machine: {}", one.name, one.why));
  }
  report.vllm = vllm_text(plan, report.obstacles);
  return report;
}

std::string plan_report_text(const plan::Plan& plan, const PlanReport& report) {
  std::string text = fmt::format("{}: valid\n", plan.base.name);
  if (!plan.base.question.empty()) text += fmt::format("question  {}\n", plan.base.question);
  text += fmt::format("plan      sha256 {}\n", plan.sha256);
  text += layout_text(report.arms.front());
  if (!plan.experiment.factor.empty()) {
    text += fmt::format("factor    {} ({})\n", plan.experiment.factor,
                        plan.arms_share_allocation ? "arms alternate on one allocation" : "each arm allocates anew");
  }
  for (const ArmReport& arm : report.arms) text += arm_text(arm);
  text += fmt::format("schedule  {} re-rolls, {} steps, {} of them timed\n", report.time.rerolls, report.time.steps,
                      report.time.timed_steps);
  text += time_text(report.time);
  for (const std::string& note : report.notes) text += fmt::format("note      {}\n", note);
  if (report.obstacles.empty()) text += "here      nothing stops `run` on this machine\n";
  for (const supervise::Obstacle& obstacle : report.obstacles) {
    text += fmt::format("here      `run` would exit {}: {}\n", static_cast<int>(obstacle.exit), obstacle.text);
  }
  if (!report.vllm.empty()) text += fmt::format("vLLM      {}\n", report.vllm);
  return text;
}

std::string plan_report_json(const plan::Plan& plan, const PlanReport& report) {
  Json json{{"name", plan.base.name},
            {"valid", true},
            {"source", plan.source_path},
            {"sha256", plan.sha256},
            {"arms_share_allocation", plan.arms_share_allocation},
            {"arms", Json::array()}};
  for (const ArmReport& arm : report.arms) json["arms"].push_back(arm_json(arm));
  const auto optional = [](const std::optional<double>& value) { return value.has_value() ? Json(*value) : Json(); };
  json["schedule"] =
      Json{{"rerolls", report.time.rerolls}, {"steps", report.time.steps}, {"timed_steps", report.time.timed_steps}};
  std::int64_t peak = 0;
  std::int64_t together = 0;
  for (const ArmReport& arm : report.arms) {
    peak = std::max(peak, arm.memory.total_bytes());
    if (!arm.arm->control) together += arm.memory.total_bytes();
  }
  if (plan.experiment.coresident) peak = std::max(peak, together);
  json["estimate"] = Json{{"peak_bytes", peak},
                          {"time_low_s", optional(report.time.low_s)},
                          {"time_high_s", optional(report.time.high_s)},
                          {"time_reason", report.time.reason}};
  json["obstacles"] = Json::array();
  for (const supervise::Obstacle& obstacle : report.obstacles) {
    json["obstacles"].push_back(Json{{"exit", static_cast<int>(obstacle.exit)}, {"text", obstacle.text}});
  }
  json["vllm"] = report.vllm.empty() ? Json() : Json(report.vllm);
  json["notes"] = report.notes;
  json["plan"] = Json::parse(plan.expanded_json);
  return json.dump(2) + "\n";
}

}  // namespace eb::cli
