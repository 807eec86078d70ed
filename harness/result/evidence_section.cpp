// What verdicts rest on beside the samples, out of the record of a run.
#include <algorithm>
#include <set>

#include "harness/base/error.h"
#include "harness/evidence/chain.h"
#include "harness/evidence/judge.h"
#include "harness/result/judgement.h"
#include "harness/result/record.h"
#include "harness/result/snapshots.h"
#include "harness/stats/paired.h"
#include "harness/supervise/binding.h"

namespace eb::result {

namespace {

constexpr const char* kExploratory[] = {"lookup_us.p50", "exposed_us.p50",    "front_us.p50",  "gather_us.p50",
                                        "step_us.p50",   "collective_us.p50", "control_us.p50"};

bool moves_pages(const std::string& factor) { return factor == "storage.policy" || factor == "storage.copies"; }

bool has_host_tables(const plan::Scenario& scenario) {
  return scenario.storage.backing != plan::Backing::stub && scenario.storage.backing != plan::Backing::hbm;
}

std::vector<std::size_t> judged_arms(const Record& record) {
  std::vector<std::size_t> judged;
  for (std::size_t a = 0; a < record.plan->arms.size(); ++a) {
    if (!record.plan->arms[a].control) judged.push_back(a);
  }
  return judged;
}

const RerollRecord* reroll_of(const Record& record, int pair, std::size_t arm) {
  for (const RerollRecord& one : record.rerolls) {
    const auto& arms = one.plan.arms;
    if (one.plan.pair == pair && std::find(arms.begin(), arms.end(), arm) != arms.end()) return &one;
  }
  return nullptr;
}

Json requested_of(const Record& record, std::size_t arm) {
  return requested_shares(record.plan->arms[arm].scenario.storage, record.layouts[arm], record.topology);
}

// Pages by node over all backings of the re-roll's last snapshot, each backing once.
struct PageSum {
  std::map<std::string, std::int64_t> nodes;
  std::int64_t pages = 0;
  std::int64_t granules = 0;  // pages that a backing's remainder may be off by, of each
  std::int64_t unqueryable = 0;
  std::int64_t queried = 0;
  std::string unknown;
};

void add_backing(PageSum& sum, const Json& backing, std::int64_t unit_bytes) {
  if (!backing.contains("node_pages") || !backing["node_pages"].is_object() ||
      backing["node_pages"].contains("reason")) {
    sum.unknown = backing.contains("node_pages") ? backing["node_pages"].value("reason", "no page map") : "no page map";
    return;
  }
  for (const auto& [node, pages] : backing["node_pages"].items()) {
    sum.nodes[node] += pages.get<std::int64_t>();
    sum.pages += pages.get<std::int64_t>();
  }
  sum.granules += granule_pages(backing, unit_bytes);
  for (const Json& table : backing.value("tables", Json::array())) {
    const Json& moved = table.at("move_pages");
    if (!moved.is_object() || moved.contains("reason")) continue;
    sum.queried += moved.value("queried_pages", std::int64_t{0});
    const Json unqueryable = moved.value("unqueryable", Json::object());
    for (const auto& [errno_name, count] : unqueryable.items()) {
      sum.unqueryable += count.get<std::int64_t>();
    }
  }
}

std::vector<RankSnapshot> last_snapshots(const RerollRecord& reroll) {
  for (const char* label : {"steady", "after_load"}) {
    std::vector<RankSnapshot> ranks = parse_snapshots(reroll.storage.snapshots, label);
    if (!ranks.empty()) return ranks;
  }
  return {};
}

Json shares_json(const PageSum& sum) {
  if (!sum.unknown.empty()) return missing(sum.unknown);
  if (sum.pages == 0) return missing("no page is mapped");
  Json out = Json::object();
  for (const auto& [node, pages] : sum.nodes) out[node] = static_cast<double>(pages) / static_cast<double>(sum.pages);
  return out;
}

Json observed_pages(const Record& record, int pair, std::size_t arm) {
  PageSum sum;
  const RerollRecord* reroll = reroll_of(record, pair, arm);
  if (reroll == nullptr) {
    sum.unknown = "the arm has not run in this pair";
  } else if (!has_host_tables(record.plan->arms[arm].scenario)) {
    sum.unknown = "the backing holds no table in host memory";
  } else {
    const std::vector<RankSnapshot> ranks = last_snapshots(*reroll);
    if (ranks.empty()) sum.unknown = "no snapshot of the pages";
    for (const plan::BackingPlace& backing : record.layouts[reroll->plan.allocated_for].backings) {
      const std::int64_t unit = plan::unit_bytes(record.plan->arms[arm].scenario.storage.backing);
      if (!ranks.empty()) add_backing(sum, backing_pages(backing, ranks, Json()), unit);
    }
  }
  return {{"pair", pair},
          {"arm", record.arm_name(arm)},
          {"shares", shares_json(sum)},
          {"requested", requested_of(record, arm)},
          {"rounding", sum.pages == 0 ? 0.0 : static_cast<double>(sum.granules) / static_cast<double>(sum.pages)},
          {"unqueryable_share",
           sum.queried + sum.unqueryable == 0
               ? Json(nullptr)
               : Json(static_cast<double>(sum.unqueryable) / static_cast<double>(sum.queried + sum.unqueryable))}};
}

std::map<int, double> map_of(const Json& shares) {
  std::map<int, double> out;
  if (!shares.is_object() || shares.contains("reason")) return out;
  for (const auto& [node, share] : shares.items()) out[std::stoi(node)] = share.get<double>();
  return out;
}

// Near, far or mixed: where the pages that a rank reads lie, seen from its device, in the first pair.
Json rank_localities(const Record& record, const std::vector<std::size_t>& judged) {
  std::map<int, Json> ranks;
  std::map<int, Json> nodes;  // of each rank, by arm: a rank map may differ between them
  for (const std::size_t arm : judged) {
    const plan::Scenario& scenario = record.plan->arms[arm].scenario;
    const RerollRecord* reroll = reroll_of(record, 0, arm);
    std::vector<supervise::RankBinding> bindings;
    try {
      bindings =
          supervise::bind_ranks(scenario, record.layouts[arm], record.topology, supervise::gpu_nodes_of(scenario));
    } catch (const Error&) {
      bindings.clear();
    }
    const std::vector<RankSnapshot> snapshots =
        reroll == nullptr ? std::vector<RankSnapshot>{} : last_snapshots(*reroll);
    for (const plan::RankPlace& place : record.layouts[arm].ranks) {
      const auto r = static_cast<std::size_t>(place.rank);
      const int node = r < bindings.size() ? bindings[r].numa_node : -1;
      evidence::Locality label = evidence::Locality::unknown;
      if (!snapshots.empty() && has_host_tables(scenario)) {
        PageSum sum;
        const auto backing = static_cast<std::size_t>(place.backing);
        add_backing(sum, backing_pages(record.layouts[arm].backings[backing], snapshots, Json()),
                    plan::unit_bytes(scenario.storage.backing));
        label = evidence::locality_of(map_of(shares_json(sum)), node, scenario.storage.tolerance);
      }
      nodes[place.rank][record.arm_name(arm)] = node < 0 ? Json(nullptr) : Json(node);
      ranks[place.rank][record.arm_name(arm)] = evidence::name(label);
    }
  }
  Json out = Json::array();
  for (const auto& [rank, labels] : ranks) {
    const Json& by_arm = nodes[rank];
    const Json first = *by_arm.begin();
    const bool alike = std::all_of(by_arm.begin(), by_arm.end(), [&](const Json& node) { return node == first; });
    out.push_back({{"rank", rank},
                   {"device_node", alike ? first : Json(nullptr)},
                   {"device_nodes", by_arm},
                   {"locality", labels}});
  }
  return out;
}

Json pages_section(const Record& record, const std::vector<std::size_t>& judged) {
  Json observed = Json::array();
  bool move = moves_pages(record.plan->experiment.factor);
  if (move) {
    // Arms that ask for the same place (bind:0 and preferred:0) move nothing.
    std::set<std::string> places;
    for (const std::size_t arm : judged) places.insert(requested_of(record, arm).dump());
    move = places.size() > 1 || requested_of(record, judged.front()).contains("reason");
  }
  for (int pair = 0; pair < record.pairs(); ++pair) {
    for (const std::size_t arm : judged) observed.push_back(observed_pages(record, pair, arm));
  }
  return {{"claim", move ? "move" : "same"},
          {"one_allocation", record.plan->arms_share_allocation},
          {"tolerance", record.plan->base.storage.tolerance},
          {"observed", observed},
          {"ranks", rank_localities(record, judged)}};
}

// What each cap asked for and what the lookups did with it, largest over ranks and layers; null for other factors.
Json grid_caps_section(const Record& record, const std::vector<std::size_t>& judged) {
  if (record.plan->experiment.factor != "prefetch.grid_cap") return nullptr;
  Json out = Json::array();
  for (const std::size_t arm : judged) {
    std::int64_t cap = 0;
    std::int64_t tiles = 0;
    std::int64_t grid = 0;
    double rows = 0;
    for (const auto& [rank, work] : record.work[arm]) {
      std::int64_t rank_rows = 0;
      for (const auto& [layer, lookup] : work.lookups) {
        cap = std::max(cap, lookup.value("grid_cap", std::int64_t{0}));
        tiles = std::max(tiles, lookup.value("tiles_max", std::int64_t{0}));
        grid = std::max(grid, lookup.value("grid_max", std::int64_t{0}));
        rank_rows += lookup.value("rows", std::int64_t{0});
      }
      if (work.steps > 0) rows = std::max(rows, static_cast<double>(rank_rows) / static_cast<double>(work.steps));
    }
    if (cap == 0) continue;  // no lookup of this arm has run
    out.push_back({{"arm", record.arm_name(arm)},
                   {"asked", record.plan->arms[arm].scenario.prefetch.grid_cap.text},
                   {"cap_programs", cap},
                   {"rows_per_step_and_rank", rows},
                   {"tiles_max", tiles},
                   {"grid_max", grid}});
  }
  return out;
}

// After how many pairs the run ended, and why.
Json stop_section(const Record& record) {
  const plan::ExperimentSpec& experiment = record.plan->experiment;
  if (!experiment.stop_at_precision) {
    return {{"rule", "fixed"}, {"pairs_made", record.pairs()}, {"half_width_log", nullptr}};
  }
  return {{"rule", "precision"},
          {"pairs_made", record.pairs()},
          {"half_width_log", record.half_width_log > 0 ? Json(record.half_width_log) : Json(nullptr)}};
}

// A gate that failed after any block of a re-roll fails the pair that the re-roll belongs to.
Json failed_gates(const Record& record) {
  Json out = Json::array();
  for (const GateRecord& gate : record.gates) {
    if (gate.failed.empty()) continue;
    for (const RerollRecord& reroll : record.rerolls) {
      if (reroll.plan.index != gate.reroll) continue;
      out.push_back({{"pair", reroll.plan.pair},
                     {"text", fmt::format("re-roll {}, block {}: {}", gate.reroll, gate.block, gate.failed.front())}});
    }
  }
  return out;
}

}  // namespace

std::string floor_name(const std::string& metric) {
  const std::vector<std::string> waits = measure::wait_metrics();
  const std::string family = metric.substr(0, metric.find('.'));
  return std::find(waits.begin(), waits.end(), family) == waits.end() ? metric : metric + " of step";
}

Json floors_section(const plan::ExperimentSpec& experiment, const AaPairs& aa_pairs, int made) {
  std::set<std::string> metrics(std::begin(kExploratory), std::end(kExploratory));
  if (!experiment.primary.empty()) metrics.insert(experiment.primary);
  metrics.insert(experiment.guards.begin(), experiment.guards.end());
  Json out = Json::object();
  for (const std::string& metric : metrics) {
    const auto found = aa_pairs.find(floor_name(metric));
    const std::size_t pairs = found == aa_pairs.end() ? 0 : found->second.size();
    const auto floor = pairs == 0 ? std::nullopt : stats::aa_floor(found->second, made);
    out[metric] = floor ? Json(*floor)
                        : missing(fmt::format("{} A/A pairs of this machine and scenario are on record, {} are needed",
                                              pairs, stats::kFloorPairs));
  }
  return out;
}

Json evidence_section(const Record& record) {
  const plan::ExperimentSpec& experiment = record.plan->experiment;
  const std::vector<std::size_t> judged = judged_arms(record);
  Json arms = Json::array();
  Json early = Json::array();
  Json joint = Json::object();  // arms that change several keys, by the scenario's own declaration
  for (const std::size_t arm : judged) {
    if (const auto& keys = record.plan->arms[arm].joint_keys; !keys.empty()) joint[record.arm_name(arm)] = keys;
    arms.push_back(record.arm_name(arm));
    if (record.plan->arms[arm].scenario.prefetch.submit == plan::Submit::early) early.push_back(record.arm_name(arm));
  }
  Json pairs = Json::array();
  for (int pair = 0; pair < record.pairs(); ++pair) {
    Json rerolls = Json::object();
    for (const std::size_t arm : judged) {
      if (const RerollRecord* reroll = reroll_of(record, pair, arm)) rerolls[record.arm_name(arm)] = reroll->plan.index;
    }
    pairs.push_back({{"pair", pair}, {"rerolls", rerolls}});
  }
  const std::vector<int> layers = measure::engram_layers(*record.plan);
  return {{"factor", experiment.factor.empty() ? Json(nullptr) : Json(experiment.factor)},
          {"arms", arms},
          {"joint_arms", joint},
          {"early_arms", early},
          {"primary", experiment.primary.empty() ? Json(nullptr) : Json(experiment.primary)},
          {"guards", experiment.guards},
          {"delta", experiment.delta},
          {"seed", record.plan->base.seed},
          {"method", evidence::kMethod},
          {"planned_pairs", experiment.pairs},
          {"stop", stop_section(record)},
          {"first_layer", layers.empty() ? -1 : layers.front()},
          {"pairs", pairs},
          {"failed_gates", failed_gates(record)},
          {"cites", record.cites},
          {"counters",
           {{"cross_socket_bytes", counted_bytes(record, "cross_socket_bytes")},
            {"host_bytes", counted_bytes(record, "host_bytes")}}},
          {"judged_of_step", measure::wait_metrics()},
          {"grid_caps", grid_caps_section(record, judged)},
          {"floor_key",
           {{"machine", record.floor_key.machine},
            {"fingerprint", record.floor_key.fingerprint},
            {"scenario", record.floor_key.scenario},
            {"one_allocation", record.floor_key.one_allocation}}},
          {"floors", floors_section(experiment, record.aa_pairs, record.pairs())},
          {"conditions",
           {{"complete", record.complete},
            {"checks_passed", record.figures_allowed()},
            {"emulated_time", record.emulated_time},
            {"time_sliced", record.time_sliced()},
            {"single_node", record.single_node},
            {"traced", record.traced},
            {"oversubscribed", oversubscription(record).has_value()}}},
          {"pages", pages_section(record, judged)}};
}

}  // namespace eb::result
