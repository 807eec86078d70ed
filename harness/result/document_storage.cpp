// result.json: the tables' memory: ledger beside observation, where the pages lie, what start-up cost.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/plan/layout.h"
#include "harness/plan/ledger_input.h"
#include "harness/rank/backend_factory.h"
#include "harness/result/record.h"
#include "harness/result/snapshots.h"

namespace eb::result {

namespace {

constexpr double kLedgerTolerance = 0.01;
// A node's counters lag behind by up to this many pages a CPU (the kernel adds them up in batches): below it a growth
// says nothing about a small table.
constexpr std::int64_t kCounterBatchPages = 125;

// A table without pages of this machine's memory.
bool off_host(plan::Backing backing) { return backing == plan::Backing::stub || backing == plan::Backing::hbm; }

bool is_private(plan::Backing backing) { return backing == plan::Backing::anon || backing == plan::Backing::anon_thp; }

// hugetlb pages are in no class of a node's memory: what its pool has fewer.
Json pool_growth(const RerollRecord& reroll, std::int64_t page_bytes) {
  std::int64_t pages = 0;
  bool found = false;
  for (const collectors::NodeMemory& after : reroll.nodes_after_load) {
    const auto before = std::find_if(reroll.nodes_before.begin(), reroll.nodes_before.end(),
                                     [&](const collectors::NodeMemory& node) { return node.node == after.node; });
    if (before == reroll.nodes_before.end() || !before->free_huge_pages.contains(page_bytes) ||
        !after.free_huge_pages.contains(page_bytes)) {
      continue;  // a node without memory has no pools
    }
    found = true;
    pages += before->free_huge_pages.at(page_bytes) - after.free_huge_pages.at(page_bytes);
  }
  return found ? Json(pages * page_bytes) : missing(fmt::format("no node has a pool of {} byte pages", page_bytes));
}

// Growth over the nodes of the class that the backing's pages are counted in.
Json node_growth(const RerollRecord& reroll, const plan::Scenario& scenario) {
  const char* key = is_private(scenario.storage.backing) ? "AnonPages" : "Shmem";
  if (scenario.storage.backing == plan::Backing::cuda_host_numa) {
    return missing("the kernel counts a driver's pages in no class of node memory; see the allocations on record");
  }
  if (reroll.nodes_after_load.empty()) return missing("no node memory was read after the load");
  if (plan::is_hugetlb(scenario.storage.backing)) {
    return pool_growth(reroll, plan::unit_bytes(scenario.storage.backing));
  }
  std::int64_t growth = 0;
  for (const collectors::NodeMemory& after : reroll.nodes_after_load) {
    const auto before = std::find_if(reroll.nodes_before.begin(), reroll.nodes_before.end(),
                                     [&](const collectors::NodeMemory& node) { return node.node == after.node; });
    if (before == reroll.nodes_before.end() || !before->bytes.contains(key) || !after.bytes.contains(key)) {
      return missing(fmt::format("{} is not in the nodes' meminfo", key));
    }
    growth += after.bytes.at(key) - before->bytes.at(key);
  }
  return growth;
}

// Every arm that runs on the re-roll's allocation.
Json arm_names(const Record& record, const RerollRecord& reroll) {
  Json names = Json::array();
  for (const std::size_t arm : reroll.plan.arms) names.push_back(record.arm_name(arm));
  for (const std::size_t arm : reroll.plan.controls) names.push_back(record.arm_name(arm));
  return names;
}

std::int64_t counter_lag_bytes(const placement::Topology& topology) {
  std::size_t cpus = 0;
  for (const placement::NumaNode& node : topology.nodes) cpus += node.cpus.size();
  return static_cast<std::int64_t>(cpus * page_bytes()) * kCounterBatchPages;
}

// Each backing of a shard with copies, and what its content was after the load.
Json copies_of(const RerollRecord& reroll, const plan::RunLayout& layout) {
  Json list = Json::array();
  for (const supervise::CopyDigest& one : reroll.storage.digests) {
    const plan::BackingPlace& backing = layout.backings[static_cast<std::size_t>(one.backing)];
    list.push_back({{"backing", one.backing},
                    {"shard", layout.ranks[static_cast<std::size_t>(backing.leader)].shard.index},
                    {"node", backing.node},
                    {"bytes", backing.bytes},
                    {"content_sha256", one.sha256}});
  }
  return list;
}

Json share_of(const Json& observed, std::int64_t expected) {
  if (!observed.is_number() || expected == 0) return nullptr;
  return observed.get<double>() / static_cast<double>(expected) - 1.0;
}

}  // namespace

// Several allocations of one re-roll are told apart by the arm's place in the plan: names of arms are no file names.
std::string RerollRecord::folder() const {
  if (plan.coresident.empty()) return fmt::format("reroll-{}", plan.index);
  return fmt::format("reroll-{}-arm-{}", plan.index, plan.allocated_for);
}

Json ledger_section(const Record& record) {
  Json list = Json::array();
  for (const RerollRecord& reroll : record.rerolls) {
    const std::size_t arm = reroll.plan.allocated_for;
    const plan::Scenario& scenario = record.plan->arms[arm].scenario;
    const plan::RunLayout& layout = record.layouts[arm];
    const engram::Ledger ledger = engram::make_ledger(record.geometries[arm], plan::ledger_input(scenario, layout));
    const bool stub = off_host(scenario.storage.backing);
    std::int64_t expected = 0;
    for (const plan::BackingPlace& backing : layout.backings) expected += backing.bytes;
    if (stub) expected = 0;
    const BackingTotals totals = backing_totals(parse_snapshots(reroll.storage.snapshots, "after_load"));
    const Json growth =
        stub ? missing(fmt::format("backing {} holds no table in host memory", plan::name(scenario.storage.backing)))
             : node_growth(reroll, scenario);
    list.push_back({{"reroll", reroll.plan.index},
                    {"arm", record.arm_name(arm)},
                    {"arms", arm_names(record, reroll)},
                    {"table_bytes_one_copy", ledger.table_bytes_one_copy},
                    {"table_bytes", stub ? 0 : ledger.table_bytes},
                    {"backing_bytes", expected},
                    {"copies", copies_of(reroll, layout)},
                    {"staging_bytes_per_rank", ledger.staging_bytes_per_rank},
                    {"source_bytes_per_token", ledger.source_bytes_per_token},
                    {"observed",
                     {{"label", "after_load"},
                      {"pss_bytes", totals.pss_bytes},
                      {"backing_allocated_bytes", totals.allocated_bytes},
                      {"node_growth_bytes", growth},
                      {"backings_counted", totals.backings}}},
                    {"deviation",
                     {{"pss", share_of(totals.pss_bytes, expected)},
                      {"backing_allocated", share_of(totals.allocated_bytes, expected)},
                      {"node_growth", share_of(growth, expected)}}},
                    {"node_growth_lag_bytes", counter_lag_bytes(record.topology)},
                    {"tolerance", kLedgerTolerance}});
  }
  return list;
}

Json placement_section(const Record& record) {
  Json snapshots = Json::array();
  for (const RerollRecord& reroll : record.rerolls) {
    const std::size_t arm = reroll.plan.allocated_for;
    const plan::Scenario& scenario = record.plan->arms[arm].scenario;
    const plan::RunLayout& layout = record.layouts[arm];
    std::vector<std::string> labels;
    for (const supervise::SnapshotReport& one : reroll.storage.snapshots) {
      if (std::find(labels.begin(), labels.end(), one.label) == labels.end()) labels.push_back(one.label);
    }
    for (const std::string& label : labels) {
      const std::vector<RankSnapshot> ranks = parse_snapshots(reroll.storage.snapshots, label);
      Json backings = Json::array();
      for (const plan::BackingPlace& backing : layout.backings) {
        const plan::Policy policy = plan::policy_of(scenario.storage, backing);
        backings.push_back(backing_pages(backing, ranks, requested_shares(policy, record.topology)));
        backings.back()["requested_policy"] = policy.text.empty() ? plan::name(policy.kind) : policy.text;
      }
      Json states = Json::array();
      for (const RankSnapshot& rank : ranks) {
        Json state = rank.json.value("rank_state", Json::object());
        Json one = {{"rank", rank.rank},
                    {"file", fmt::format("placement/{}/{}-rank-{}.json", reroll.folder(), label, rank.rank)}};
        one.update(state);
        states.push_back(std::move(one));
      }
      snapshots.push_back(
          {{"reroll", reroll.plan.index},
           {"arm", record.arm_name(arm)},
           {"arms", arm_names(record, reroll)},
           {"label", label},
           {"requested_policy", scenario.storage.policy.text.empty() ? Json(plan::name(scenario.storage.policy.kind))
                                                                     : Json(scenario.storage.policy.text)},
           {"copies", plan::name(scenario.storage.copies)},
           {"requested_shares", requested_shares(scenario.storage, layout, record.topology)},
           {"backings", backings},
           {"ranks", states}});
    }
  }
  return {{"snapshots", snapshots}};
}

namespace {

Json bytes_or_missing(std::int64_t bytes) {
  return bytes < 0 ? missing("private memory has no backing object") : Json(bytes);
}

// Who faulted a backing's pages while it was registered, and how much of it was there when each rank began and ended:
// where ranks register one after another, the difference is what that rank allocated.
Json registration(const RerollRecord& reroll, const plan::Scenario& scenario, const plan::RunLayout& layout) {
  Json list = Json::array();
  if (off_host(scenario.storage.backing)) return list;
  for (const plan::BackingPlace& backing : layout.backings) {
    Json ranks = Json::array();
    std::map<int, const supervise::StageReport*> by_rank;  // reports come in the order in which ranks ended
    for (const supervise::StageReport& stage : reroll.storage.stages) {
      if (stage.stage == control::Stage::register_) by_rank[stage.rank] = &stage;
    }
    for (const int reader : backing.readers) {
      const auto found = by_rank.find(reader);
      if (found == by_rank.end()) continue;  // it failed before
      const supervise::StageReport& stage = *found->second;
      ranks.push_back({{"rank", stage.rank},
                       {"leader", stage.rank == backing.leader},
                       {"minor_faults", stage.minor_faults},
                       {"major_faults", stage.major_faults},
                       {"allocated_before_bytes", bytes_or_missing(stage.allocated_before_bytes)},
                       {"allocated_after_bytes", bytes_or_missing(stage.allocated_after_bytes)}});
    }
    list.push_back(
        {{"backing", backing.index}, {"order", plan::name(scenario.storage.register_order)}, {"ranks", ranks}});
  }
  return list;
}

}  // namespace

Json startup_section(const Record& record) {
  Json list = Json::array();
  for (const RerollRecord& reroll : record.rerolls) {
    Json stages = Json::array();
    std::map<control::Stage, std::int64_t> last_end_ns;  // when the barrier behind a stage opened
    for (const supervise::StageReport& stage : reroll.storage.stages) {
      last_end_ns[stage.stage] = std::max(last_end_ns[stage.stage], stage.end_ns);
    }
    const plan::Scenario& scenario = record.plan->arms[reroll.plan.allocated_for].scenario;
    const bool stock = scenario.storage.policy.kind == plan::PolicyKind::stock;
    for (const supervise::StageReport& stage : reroll.storage.stages) {
      const Json skew = stock && stage.stage == control::Stage::map
                            ? missing("stock has no barrier between map and register")
                            : Json(static_cast<double>(last_end_ns[stage.stage] - stage.end_ns) / 1000.0);
      stages.push_back({{"rank", stage.rank},
                        {"stage", control::name(stage.stage)},
                        {"duration_us", static_cast<double>(stage.end_ns - stage.start_ns) / 1000.0},
                        {"skew_us", skew},
                        {"minor_faults", stage.minor_faults},
                        {"major_faults", stage.major_faults}});
    }
    list.push_back({{"reroll", reroll.plan.index},
                    {"arm", record.arm_name(reroll.plan.allocated_for)},
                    {"ranks_ready_us", static_cast<double>(reroll.storage.ranks_ready_ns) / 1000.0},
                    {"stages", stages},
                    {"registration", registration(reroll, scenario, record.layouts[reroll.plan.allocated_for])}});
  }
  return list;
}

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

}  // namespace

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
  for (const Json& entry : ledger_section(record)) {
    for (const auto& [what, deviation] : entry["deviation"].items()) {
      if (!deviation.is_number() || std::abs(deviation.get<double>()) <= kLedgerTolerance) continue;
      const double off_bytes = std::abs(deviation.get<double>()) * entry["backing_bytes"].get<double>();
      if (what == "node_growth" && off_bytes <= static_cast<double>(counter_lag_bytes(record.topology))) continue;
      list.push_back({"ledger_disagrees",
                      fmt::format("Re-roll {}: {} is {:+.2f} % off the ledger's {} bytes.", entry["reroll"].get<int>(),
                                  what, deviation.get<double>() * 100, entry["backing_bytes"].get<std::int64_t>()),
                      what == "node_growth"
                          ? "Other programs on this machine change node memory too: repeat on a quiet machine."
                          : "Compare the snapshots in placement/ with the ledger.",
                      {{"figure", what}, {"deviation", deviation}, {"observed", entry["observed"]}}});
    }
  }
  return list;
}

}  // namespace eb::result
