#include "harness/result/snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/policy.h"

namespace eb::result {

namespace {

bool is_missing(const Json& value) { return value.is_object() && value.contains("reason"); }

// Member `key` of `value`, or null with a reason.
Json member(const Json& value, const char* key) {
  if (is_missing(value)) return value;
  if (!value.is_object() || !value.contains(key)) return missing(fmt::format("the snapshot has no {}", key));
  return value[key];
}

std::int64_t mapped_pages(const Json& node_pages) {
  if (!node_pages.is_object() || is_missing(node_pages)) return -1;
  std::int64_t sum = 0;
  for (const auto& [node, pages] : node_pages.items()) sum += pages.get<std::int64_t>();
  return sum;
}

// Pages a rank's snapshot shows of its mapping: numa_maps' count, else move_pages' over the tables.
std::int64_t fullness(const RankSnapshot& rank) {
  const std::int64_t pages = mapped_pages(member(member(rank.json, "mapping"), "node_pages"));
  if (pages >= 0) return pages;
  std::int64_t sum = 0;
  for (const Json& table : rank.json.value("tables", Json::array())) {
    sum += std::max<std::int64_t>(0, mapped_pages(member(member(table, "move_pages"), "node_pages")));
  }
  return sum;
}

}  // namespace

std::vector<RankSnapshot> parse_snapshots(const std::vector<supervise::SnapshotReport>& reports,
                                          const std::string& label) {
  std::vector<RankSnapshot> ranks;
  for (const supervise::SnapshotReport& report : reports) {
    if (report.label != label) continue;
    Json json = Json::parse(report.json, nullptr, false);
    if (json.is_discarded()) fail(Exit::failure, "rank {}: snapshot {} is not JSON", report.rank, label);
    ranks.push_back({report.rank, std::move(json)});
  }
  std::sort(ranks.begin(), ranks.end(), [](const RankSnapshot& a, const RankSnapshot& b) { return a.rank < b.rank; });
  return ranks;
}

BackingTotals backing_totals(const std::vector<RankSnapshot>& ranks) {
  BackingTotals totals;
  if (ranks.empty()) {
    totals.pss_bytes = totals.allocated_bytes = missing("no snapshot after the load");
    return totals;
  }
  std::int64_t pss = 0;
  std::int64_t allocated = 0;
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  totals.pss_bytes = totals.allocated_bytes = Json();
  for (const RankSnapshot& rank : ranks) {
    const Json mapping = member(rank.json, "mapping");
    const Json own_pss = member(mapping, "pss_bytes");
    if (own_pss.is_number())
      pss += own_pss.get<std::int64_t>();
    else if (totals.pss_bytes.is_null())
      totals.pss_bytes = own_pss;
    const Json backing = member(mapping, "backing");
    if (is_missing(backing)) {
      if (totals.allocated_bytes.is_null()) totals.allocated_bytes = backing;
    } else if (backing.is_null()) {  // private memory: resident is allocated
      const Json rss = member(mapping, "rss_bytes");
      ++totals.backings;
      if (rss.is_number())
        allocated += rss.get<std::int64_t>();
      else if (totals.allocated_bytes.is_null())
        totals.allocated_bytes = rss;
    } else if (seen.insert({backing.value("device", std::uint64_t{0}), backing.value("inode", std::uint64_t{0})})
                   .second) {
      allocated += backing.value("allocated_bytes", std::int64_t{0});
      ++totals.backings;
    }
  }
  if (totals.pss_bytes.is_null()) totals.pss_bytes = pss;
  if (totals.allocated_bytes.is_null()) totals.allocated_bytes = allocated;
  return totals;
}

Json node_shares(const Json& node_pages) {
  const std::int64_t sum = mapped_pages(node_pages);
  if (sum < 0) return is_missing(node_pages) ? node_pages : missing("no pages by node");
  if (sum == 0) return missing("no page is mapped here");
  Json shares = Json::object();
  for (const auto& [node, pages] : node_pages.items()) {
    shares[node] = pages.get<double>() / static_cast<double>(sum);
  }
  return shares;
}

Json backing_pages(const plan::BackingPlace& backing, const std::vector<RankSnapshot>& ranks,
                   const Json& requested_shares) {
  const RankSnapshot* fullest = nullptr;
  for (const RankSnapshot& rank : ranks) {
    const bool reader = std::find(backing.readers.begin(), backing.readers.end(), rank.rank) != backing.readers.end();
    if (reader && (fullest == nullptr || fullness(rank) > fullness(*fullest))) fullest = &rank;
  }
  Json out = {{"backing", backing.index}, {"readers", backing.readers}, {"bytes", backing.bytes}};
  if (fullest == nullptr) {
    out["seen_by_rank"] = missing("no reader of the backing gave a snapshot");
    return out;
  }
  const Json mapping = member(fullest->json, "mapping");
  const Json identity = member(mapping, "backing");
  out["seen_by_rank"] = fullest->rank;
  out["identity"] = identity.is_null() ? missing("private memory has no backing object") : identity;
  out["policy"] = member(mapping, "policy");
  out["kernel_page_bytes"] = member(mapping, "kernel_page_bytes");
  out["node_pages"] = member(mapping, "node_pages");
  out["huge_pages"] = member(mapping, "huge_pages");
  out["requested_shares"] = requested_shares;
  out["observed_shares"] = node_shares(out["node_pages"]);
  Json tables = Json::array();
  for (const Json& table : fullest->json.value("tables", Json::array())) {
    const Json pages = member(table, "move_pages");
    Json one = {
        {"layer", member(table, "layer")}, {"offset", member(table, "offset")}, {"bytes", member(table, "bytes")}};
    one["move_pages"] = pages;
    one["observed_shares"] = node_shares(member(pages, "node_pages"));
    tables.push_back(std::move(one));
  }
  out["tables"] = tables;
  return out;
}

std::int64_t granule_pages(const Json& backing, std::int64_t unit_bytes) {
  // numa_maps counts a hugetlb page as one, a transparent huge page in system pages; so does move_pages with both.
  const auto system_page = static_cast<std::int64_t>(page_bytes());
  const std::int64_t counted = backing.at("node_pages").contains("reason")
                                   ? system_page
                                   : backing.value("kernel_page_bytes", Json(system_page)).get<std::int64_t>();
  return std::max<std::int64_t>(1, unit_bytes / counted);
}

Json requested_shares(const plan::StorageSpec& storage, const plan::RunLayout& layout,
                      const placement::Topology& topology) {
  std::map<std::string, double> bytes;
  double all = 0;
  for (const plan::BackingPlace& backing : layout.backings) {
    const Json shares = requested_shares(plan::policy_of(storage, backing), topology);
    if (is_missing(shares)) return shares;
    for (const auto& [node, share] : shares.items()) {
      bytes[node] += share.get<double>() * static_cast<double>(backing.bytes);
    }
    all += static_cast<double>(backing.bytes);
  }
  if (all <= 0) return missing("there is no table");
  Json out = Json::object();
  for (const auto& [node, part] : bytes) out[node] = part / all;
  return out;
}

Json requested_shares(const plan::Policy& wanted, const placement::Topology& topology) {
  try {
    const placement::EffectivePolicy policy = placement::resolve(wanted, topology);
    int last = 0;
    for (const placement::NumaNode& node : topology.nodes) last = std::max(last, node.id);
    const std::vector<double> shares = placement::requested_shares(policy, last + 1);
    if (shares.empty()) return missing("the policy promises no shares");
    Json out = Json::object();
    for (std::size_t node = 0; node < shares.size(); ++node) out[fmt::format("{}", node)] = shares[node];
    return out;
  } catch (const Error& error) {
    return missing(error.what());
  }
}

}  // namespace eb::result
