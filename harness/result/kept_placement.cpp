#include "harness/result/kept_placement.h"

#include <fmt/format.h>

#include <algorithm>
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

}  // namespace

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
    // numa_maps counts a hugetlb page as one, a transparent huge page in system pages; so does move_pages with both.
    const auto system_page = plan::unit_bytes(plan::Backing::shm);
    const std::int64_t counted = seen.at("node_pages").contains("reason")
                                     ? system_page
                                     : seen.value("kernel_page_bytes", Json(system_page)).get<std::int64_t>();
    const std::int64_t granule = std::max<std::int64_t>(1, plan::unit_bytes(storage.backing) / counted);
    const std::vector<std::string> broken = placement::broken_promises(policy, pages, storage.tolerance, granule);
    if (broken.empty()) continue;
    found.push_back({backing.index, fmt::format("arm {}, backing {}, {}: policy {} was asked for and not obtained: {}",
                                                record.arm_name(arm), backing.index, label, placement::text(policy),
                                                fmt::join(broken, "; "))});
  }
  return found;
}

}  // namespace eb::result
