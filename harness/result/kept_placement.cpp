#include "harness/result/kept_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "harness/result/snapshots.h"
#include "placement/policy.h"

namespace eb::result {

namespace {

// Pages of a backing by node: numa_maps' count; where that is missing, the sum over the tables of what move_pages saw.
std::map<int, std::int64_t> observed_pages(const Json& backing) {
  std::map<int, std::int64_t> pages;
  const auto add = [&](const Json& by_node) {
    if (!by_node.is_object() || by_node.contains("reason")) return false;
    for (const auto& [node, count] : by_node.items()) pages[std::stoi(node)] += count.get<std::int64_t>();
    return true;
  };
  if (!backing.contains("tables") || add(backing["node_pages"])) return pages;
  for (const Json& table : backing["tables"]) {
    if (table["move_pages"].contains("node_pages")) add(table["move_pages"]["node_pages"]);
  }
  return pages;
}

// Bytes by node as numa_maps counts the mapping; empty where it does not.
std::map<int, double> bytes_of_mapping(const Json& backing) {
  std::map<int, double> bytes;
  if (!backing["node_pages"].is_object() || backing["node_pages"].contains("reason")) return bytes;
  const Json unit = backing["kernel_page_bytes"];
  if (!unit.is_number()) return bytes;
  for (const auto& [node, pages] : backing["node_pages"].items()) {
    bytes[std::stoi(node)] += pages.get<double>() * unit.get<double>();
  }
  return bytes;
}

// The same as move_pages answers for the tables, and by how much a node's sum may be off: where pages were drawn four
// standard errors, and what lies between the tables.
struct Moved {
  std::map<int, double> bytes;
  double slack = 0;
  bool whole = true;  // every page was asked, or stands for others, and has a node
};

Moved bytes_of_tables(const Json& backing) {
  Moved sum;
  double all = 0;
  for (const Json& table : backing["tables"]) {
    const Json& pages = table["move_pages"];
    const double bytes = table["bytes"].get<double>();
    all += bytes;
    double known = 0;
    if (pages.contains("node_pages")) {
      for (const auto& [node, count] : pages["node_pages"].items()) known += count.get<double>();
    }
    if (known == 0 || pages["not_mapped_pages"] != 0 || !pages["unqueryable"].empty()) {
      sum.whole = false;
      return sum;
    }
    for (const auto& [node, count] : pages["node_pages"].items()) {
      sum.bytes[std::stoi(node)] += count.get<double>() / known * bytes;
    }
    sum.slack += 4 * pages["share_error"].get<double>() * bytes;
  }
  sum.slack += std::max(0.0, backing["bytes"].get<double>() - all);
  return sum;
}

}  // namespace

std::vector<BrokenPromise> disputed_pages(const Record& record, const RerollRecord& reroll, const std::string& label) {
  std::vector<BrokenPromise> found;
  const std::size_t arm = reroll.plan.allocated_for;
  const std::vector<RankSnapshot> ranks = parse_snapshots(reroll.storage.snapshots, label);
  if (ranks.empty()) return found;
  for (const plan::BackingPlace& backing : record.layouts[arm].backings) {
    const Json seen = backing_pages(backing, ranks, Json());
    if (!seen.contains("tables")) continue;
    const std::map<int, double> mapping = bytes_of_mapping(seen);
    const Moved tables = bytes_of_tables(seen);
    if (mapping.empty() || !tables.whole) continue;  // one source: nothing to compare
    std::map<int, double> off = mapping;
    for (const auto& [node, bytes] : tables.bytes) off[node] -= bytes;
    // Tables begin and end within pages.
    const double unit = seen["kernel_page_bytes"].get<double>();
    const double slack = tables.slack + unit * static_cast<double>(seen["tables"].size());
    for (const auto& [node, bytes] : off) {
      if (std::abs(bytes) <= slack) continue;
      found.push_back({backing.index, fmt::format("arm {}, backing {}, {}: numa_maps and move_pages differ by {:.0f} "
                                                  "bytes on node {}",
                                                  record.arm_name(arm), backing.index, label, std::abs(bytes), node)});
      break;
    }
  }
  return found;
}

std::vector<BrokenPromise> broken_promises(const Record& record, const RerollRecord& reroll, const std::string& label) {
  std::vector<BrokenPromise> found;
  const std::size_t arm = reroll.plan.allocated_for;
  const plan::StorageSpec& storage = record.plan->arms[arm].scenario.storage;
  if (storage.backing == plan::Backing::stub || storage.backing == plan::Backing::hbm) return found;
  const std::vector<RankSnapshot> ranks = parse_snapshots(reroll.storage.snapshots, label);
  if (ranks.empty()) return found;
  for (const plan::BackingPlace& backing : record.layouts[arm].backings) {
    const placement::EffectivePolicy policy = placement::resolve(plan::policy_of(storage, backing), record.topology);
    const Json seen = backing_pages(backing, ranks, Json());
    const auto pages = observed_pages(seen);
    if (pages.empty()) continue;
    const std::int64_t granule = granule_pages(seen, plan::unit_bytes(storage.backing));
    const std::vector<std::string> broken = placement::broken_promises(policy, pages, storage.tolerance, granule);
    if (broken.empty()) continue;
    found.push_back({backing.index, fmt::format("arm {}, backing {}, {}: policy {} was asked for and not obtained: {}",
                                                record.arm_name(arm), backing.index, label, placement::text(policy),
                                                fmt::join(broken, "; "))});
  }
  return found;
}

}  // namespace eb::result
