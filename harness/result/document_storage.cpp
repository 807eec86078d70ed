// result.json: the tables' memory: ledger beside observation, where the pages lie, what start-up cost.
#include <algorithm>
#include <map>
#include <set>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/plan/layout.h"
#include "harness/plan/ledger_input.h"
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

// What the ranks hold besides their tables, of the class of memory that the tables are counted in: anonymous memory
// beside private tables, else shared memory that is mapped (the arena).
Json ranks_own_bytes(const std::vector<RankSnapshot>& ranks, plan::Backing backing) {
  if (plan::is_hugetlb(backing) || backing == plan::Backing::cuda_host_numa || off_host(backing)) {
    return missing("the tables are in no class of memory that a process has more of");
  }
  const char* key = is_private(backing) ? "pss_anon" : "pss_shmem";
  std::int64_t own = 0;
  if (ranks.empty()) return missing("no snapshot after the load");
  for (const RankSnapshot& rank : ranks) {
    const Json all = rank.json.value(Json::json_pointer(fmt::format("/rank_state/rollup_bytes/{}", key)), Json());
    const Json tables = rank.json.value(Json::json_pointer("/mapping/pss_bytes"), Json());
    if (!all.is_number() || !tables.is_number()) return missing("smaps_rollup or smaps has no figure of a rank");
    own += all.get<std::int64_t>() - tables.get<std::int64_t>();
  }
  return own;
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
    const std::vector<RankSnapshot> ranks = parse_snapshots(reroll.storage.snapshots, "after_load");
    const BackingTotals totals = backing_totals(ranks);
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
                      {"ranks_own_bytes", ranks_own_bytes(ranks, scenario.storage.backing)},
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

}  // namespace eb::result
