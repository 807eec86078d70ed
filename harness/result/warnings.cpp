// result.json: warnings that follow from what was recorded, each with what to do about it.
#include <algorithm>
#include <cmath>

#include "harness/rank/backend_factory.h"
#include "harness/result/kept_placement.h"
#include "harness/result/record.h"
#include "harness/result/snapshots.h"
#include "placement/backing.h"

namespace eb::result {

namespace {

constexpr double kThpCovered = 0.95;  // of a mapping's resident bytes

// Transparent huge pages are a wish: how much of each reader's mapping lies in them, where it is little.
void add_thp_warnings(const Record& record, const RerollRecord& reroll, std::vector<Warning>& list) {
  const std::size_t arm = reroll.plan.allocated_for;
  const plan::StorageSpec& storage = record.plan->arms[arm].scenario.storage;
  if (!plan::is_thp(storage.backing)) return;
  double least = 1;
  int rank = -1;
  for (const RankSnapshot& one : parse_snapshots(reroll.storage.snapshots, "after_load")) {
    const Json share = one.json.value(Json::json_pointer("/mapping/huge_pages/share"), Json());
    if (!share.is_number() || share.get<double>() >= least) continue;
    least = share.get<double>();
    rank = one.rank;
  }
  if (least >= kThpCovered) return;
  list.push_back(
      {"thp_not_covered",
       fmt::format("Arm {}, re-roll {}: storage.backing {} asked for transparent huge pages, {:.1f} % of rank "
                   "{}'s tables are mapped by them.",
                   record.arm_name(arm), reroll.plan.index, plan::name(storage.backing), least * 100, rank),
       "Free memory (the kernel found no whole 2 MiB), see transparent_hugepage/ in /sys/kernel/mm, or use "
       "storage.backing hugetlb-2m.",
       {{"reroll", reroll.plan.index}, {"rank", rank}, {"covered_share", least}}});
}

// The kernel or the container took no policy, and the run was to go on: the pages lie where they were faulted.
void add_refused_policies(const RerollRecord& reroll, std::vector<Warning>& list) {
  for (const supervise::RefusedPolicy& one : reroll.storage.policies_refused) {
    list.push_back(
        {"placement_degraded",
         fmt::format("Re-roll {}, rank {}: storage.policy was not set: {}", reroll.plan.index, one.rank, one.text),
         "Leave --allow-degraded out, and the run fails where a policy is refused.",
         {{"reroll", reroll.plan.index}, {"rank", one.rank}, {"snapshot", nullptr}}});
  }
}

// Pages that moved between the two questions, or a kernel that answers one of them wrongly.
void add_disputed_pages(const Record& record, const RerollRecord& reroll, std::vector<Warning>& list) {
  for (const char* label : {"after_load", "steady"}) {
    for (const BrokenPromise& one : disputed_pages(record, reroll, label)) {
      list.push_back({"page_counts_differ",
                      fmt::format("Re-roll {}: {}.", reroll.plan.index, one.text),
                      "Look for what moves pages (numa_balancing, a daemon), and repeat.",
                      {{"reroll", reroll.plan.index}, {"backing", one.backing}, {"snapshot", label}}});
    }
  }
}

// Where move_pages is refused, the page counts of numa_maps stand alone, and nothing tells where a row lies.
void add_unqueried_pages(const RerollRecord& reroll, std::vector<Warning>& list) {
  std::vector<int> ranks;
  std::string reason;
  bool mapped = true;
  for (const RankSnapshot& one : parse_snapshots(reroll.storage.snapshots, "after_load")) {
    for (const Json& table : one.json.value("tables", Json::array())) {
      const Json pages = table.value("move_pages", Json());
      if (!pages.is_object() || !pages.contains("reason")) continue;
      reason = pages["reason"].get<std::string>();
      ranks.push_back(one.rank);
      const Json by_node = one.json.value(Json::json_pointer("/mapping/node_pages"), Json());
      mapped = mapped && by_node.is_object() && !by_node.contains("reason");
      break;
    }
  }
  if (ranks.empty()) return;
  list.push_back({"pages_not_queried",
                  fmt::format("Re-roll {}: rank {}: {}; {}, and local_row_share is null.", reroll.plan.index,
                              fmt::join(ranks, ", "), reason,
                              mapped ? "pages by node have numa_maps as their one source"
                                     : "nor does numa_maps count them: where they lie is not known"),
                  "Allow move_pages: --cap-add SYS_NICE, or a seccomp profile that has it.",
                  {{"reroll", reroll.plan.index}, {"ranks", ranks}}});
}

// A figure of the tables' memory that is off the ledger, and what is likely behind it.
void add_ledger_warnings(const Record& record, std::vector<Warning>& list) {
  for (const Json& entry : ledger_section(record)) {
    for (const auto& [what, deviation] : entry["deviation"].items()) {
      if (!deviation.is_number() || std::abs(deviation.get<double>()) <= entry["tolerance"].get<double>()) continue;
      const auto backing_bytes = entry["backing_bytes"].get<std::int64_t>();
      const double off_bytes = deviation.get<double>() * static_cast<double>(backing_bytes);
      std::string next_step = "Compare the snapshots in placement/ with the ledger.";
      if (what == "node_growth") {
        if (std::abs(off_bytes) <= entry["node_growth_lag_bytes"].get<double>()) continue;
        const Json& own = entry["observed"]["ranks_own_bytes"];
        // The tables are small beside what a process needs anyway: no other program is to blame.
        const bool ranks_themselves = own.is_number() && off_bytes > 0 && own.get<double>() >= off_bytes / 2;
        next_step = ranks_themselves
                        ? fmt::format(
                              "The ranks' own memory besides the tables, {}, is counted there too: raise "
                              "model.table_scale, or read pss and backing_allocated.",
                              placement::human_bytes(own.get<std::int64_t>()))
                        : "Other programs on this machine change node memory too: repeat on a quiet machine.";
      }
      list.push_back({"ledger_disagrees",
                      fmt::format("Re-roll {}: {} is {:+.2f} % off the ledger's {} bytes.", entry["reroll"].get<int>(),
                                  what, deviation.get<double>() * 100, backing_bytes),
                      next_step,
                      {{"figure", what}, {"deviation", deviation}, {"observed", entry["observed"]}}});
    }
  }
}

}  // namespace

std::optional<Oversubscription> oversubscription(const Record& record) {
  int threads = 0;
  for (const auto& ranks : record.work) {
    int sum = 0;
    for (const auto& [rank, work] : ranks) sum += work.threads;
    threads = std::max(threads, sum);
  }
  const int cpus = static_cast<int>(record.topology.allowed_cpus.size());
  // Virtual time has no turns to take, and a GPU's programs are no threads.
  if (rank::resolve_backend(record.plan->base.device.backend) != plan::BackendKind::cpu) return std::nullopt;
  if (cpus == 0 || threads <= cpus) return std::nullopt;
  return Oversubscription{threads, cpus};
}

std::vector<Warning> derived_warnings(const Record& record) {
  std::vector<Warning> list = device_warnings(record);
  if (record.fault_planted()) {
    list.push_back({"planted_fault", "The scenario plants a fault; no figure of this run is shown.",
                    "Remove the key fault from the scenario.", Json::object()});
  }
  if (const plan::InjectSpec& inject = record.plan->experiment.inject; !inject.stage.empty()) {
    list.push_back({"injected",
                    fmt::format("Extra work of {} % was planted in stage {} of arm {}: this result can be no baseline.",
                                inject.percent, inject.stage, inject.arm),
                    "Remove experiment.inject to measure the machine.",
                    {{"percent", inject.percent}}});
  }
  for (const plan::SkippedControl& one : record.plan->skipped_controls) {
    list.push_back({"control_skipped",
                    fmt::format("Control {} did not run: {}.", one.name, one.why),
                    "Run on a machine that has what it needs; the arms stand without it.",
                    {{"control", one.name}}});
  }
  if (record.single_node) {
    list.push_back(
        {"single_node",
         "A rehearsal on one NUMA node: the arms' policies name the node that is there, and every verdict is "
         "void.",
         "Run on a machine with the NUMA nodes that the scenario names.", Json::object()});
  }
  if (record.traced) {
    list.push_back({"traced", "Kernel records were kept: what that costs is in every time, and every verdict is void.",
                    "Run without --trace to measure; trace/ holds what the devices ran.", Json::object()});
  }
  if (const auto over = oversubscription(record)) {
    list.push_back({"oversubscribed",
                    fmt::format("{} threads want to run at once on {} allowed CPUs: they take turns, and no timing "
                                "verdict is better than inconclusive.",
                                over->threads, over->cpus),
                    "Allow more CPUs, or lower parallel.tp, parallel.dp or device.cpu_workers.",
                    {{"runnable_threads", over->threads}, {"allowed_cpus", over->cpus}}});
  }
  if (record.plan->base.device.backend == plan::BackendKind::fake) {
    list.push_back({"virtual_time", "The fake backend scripts its durations; they say nothing about a machine.",
                    "Set device.backend to cpu or cuda.", Json::object()});
  }
  std::int64_t short_windows = 0;
  for (const auto& arm : record.work) {
    for (const auto& [rank, work] : arm) {
      if (work.windows.is_object()) short_windows += work.windows.value("short_windows", std::int64_t{0});
    }
  }
  if (short_windows > 0) {
    list.push_back({"short_windows",
                    fmt::format("{} timed windows of the lookup are shorter than 200 us, so that the clock and the "
                                "launches' ends weigh in them.",
                                short_windows),
                    "Raise workload.window_launches, or leave it 0.",
                    {{"windows", short_windows}}});
  }
  for (std::size_t a = 0; a < record.plan->arms.size(); ++a) {
    const plan::Scenario& scenario = record.plan->arms[a].scenario;
    bool differ = false;
    for (int replica = 1; replica < scenario.parallel.dp; ++replica) {
      const auto period = static_cast<std::int64_t>(scenario.workload.batches.size());
      for (std::int64_t step = 0; step < std::max<std::int64_t>(1, period); ++step) {
        differ = differ || scenario.workload.step_tokens(replica, step) != scenario.workload.step_tokens(0, step);
      }
    }
    if (!differ) continue;
    list.push_back(
        {"replicas_differ",
         fmt::format("Arm {}: the replicas' batches differ, and a pooled figure mixes them.", record.arm_name(a)),
         "Read per_replica and per_rank of the cells.", Json::object()});
  }
  for (const RerollRecord& reroll : record.rerolls) {
    add_thp_warnings(record, reroll, list);
    add_refused_policies(reroll, list);
    add_unqueried_pages(reroll, list);
    add_disputed_pages(record, reroll, list);
    const auto add = [&](const supervise::DegradedBinding& one, const char* what, const char* next_step) {
      list.push_back({"binding_degraded",
                      fmt::format("Re-roll {}, rank {}: storage.bind_ranks was {}: {}", reroll.plan.index, one.rank,
                                  what, one.lost),
                      next_step,
                      {{"reroll", reroll.plan.index}, {"rank", one.rank}, {"part", one.part}, {"lost", one.lost}}});
    };
    for (const supervise::DegradedBinding& one : reroll.storage.degraded) {
      add(one, "not obtained",
          "Start the container with --cap-add SYS_NICE and the cpuset that is asked for, or set storage.bind_ranks to "
          "none.");
    }
    for (const supervise::DegradedBinding& one : reroll.lost_later) {
      add(one, "lost", "Look for what moves processes of this machine: taskset, a cpuset that changes, a balancer.");
    }
  }
  for (const measure::WarmUp& one : record.warm_ups) {
    if (one.steady || !record.figures_allowed()) continue;
    list.push_back({"warm_up_not_steady",
                    fmt::format("Arm {}: the step time was not steady when the warm-up hit its cap of {} steps.",
                                record.arm_name(one.arm), one.steps),
                    "Raise workload.warmup, or look for other load on this machine.",
                    {{"slope", one.slope ? Json(*one.slope) : Json(nullptr)}, {"reroll", one.reroll}}});
  }
  add_ledger_warnings(record, list);
  return list;
}

}  // namespace eb::result
