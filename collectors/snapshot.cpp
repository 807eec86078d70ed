#include "collectors/snapshot.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "collectors/process_maps.h"
#include "collectors/system_state.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/backing.h"

namespace eb::collectors {

namespace {

using Json = nlohmann::ordered_json;

Json missing(const std::string& reason) { return {{"value", nullptr}, {"reason", reason}}; }

// "Shared_Clean" -> "shared_clean".
std::string lower(std::string key) {
  std::transform(key.begin(), key.end(), key.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return key;
}

Json rank_state() {
  const RankState state = read_rank_state();
  Json rollup = Json::object();
  for (const auto& [key, bytes] : state.rollup_bytes) rollup[lower(key)] = bytes;
  return {
      {"cpus", state.cpus},
      {"mems_allowed", state.mems_allowed},
      {"task_policy", state.task_policy.empty() ? missing(state.task_policy_reason) : Json(state.task_policy)},
      {"rollup_bytes", rollup.empty() ? missing("/proc/self/smaps_rollup: not on this kernel") : std::move(rollup)}};
}

Json backing(const SnapshotInput& input) {
  if (input.allocation) {
    Json pieces = Json::array();
    std::uint64_t bytes = 0;
    for (const AllocationRecord::Piece& piece : input.allocation->pieces) {
      pieces.push_back({{"node", piece.node}, {"bytes", piece.bytes}});
      bytes += piece.bytes;
    }
    return {{"kind", input.backing_kind},
            {"device", 0},
            {"inode", input.allocation->identity},
            {"allocated_bytes", bytes},
            {"pieces", std::move(pieces)}};
  }
  if (input.backing_fd < 0) return nullptr;
  const placement::BackingState state = placement::backing_state(input.backing_fd);
  return {{"kind", input.backing_kind},
          {"device", state.device},
          {"inode", state.inode},
          {"allocated_bytes", state.allocated_bytes}};
}

std::int64_t sum(const std::vector<SmapsEntry>& entries, const char* key) {
  std::int64_t total = 0;
  for (const SmapsEntry& entry : entries) {
    const auto at = entry.bytes.find(key);
    if (at != entry.bytes.end()) total += at->second;
  }
  return total;
}

void add_numa(const RangeMaps& range, Json& mapping) {
  if (range.numa.empty()) {
    const std::string reason =
        !range.numa_reason.empty() ? range.numa_reason : "numa_maps has no line for this mapping";
    mapping["policy"] = missing(reason);
    mapping["node_pages"] = missing(reason);
    mapping["kernel_page_bytes"] = missing(reason);
    return;
  }
  // Policies in the order of the addresses, each once: more than one where something split the mapping.
  std::string policies;
  std::set<std::string> seen;
  std::int64_t unit = range.numa.front().kernel_page_bytes;
  for (const NumaMapsEntry& entry : range.numa) {
    if (seen.insert(entry.policy).second) policies += (policies.empty() ? "" : " + ") + entry.policy;
    unit = std::min(unit, entry.kernel_page_bytes);
  }
  mapping["policy"] = policies;
  if (range.covers_more) {
    mapping["node_pages"] = missing("the kernel merged this mapping with a neighbour; see tables[].move_pages");
  } else {
    std::map<int, std::int64_t> pages;
    for (const NumaMapsEntry& entry : range.numa) {
      for (const auto& [node, count] : entry.node_pages) pages[node] += count * (entry.kernel_page_bytes / unit);
    }
    Json by_node = Json::object();
    for (const auto& [node, count] : pages) by_node[fmt::format("{}", node)] = count;
    mapping["node_pages"] = std::move(by_node);
  }
  mapping["kernel_page_bytes"] = unit;
}

// Bytes of the mapping in huge pages, by the field of smaps that counts them; `share` of what is resident.
Json huge_json(const std::vector<SmapsEntry>& smaps, std::int64_t resident) {
  const std::int64_t anon = sum(smaps, "AnonHugePages");
  const std::int64_t shmem = sum(smaps, "ShmemPmdMapped");
  const std::int64_t hugetlb = sum(smaps, "Private_Hugetlb") + sum(smaps, "Shared_Hugetlb");
  return {{"anon_bytes", anon},
          {"shmem_bytes", shmem},
          {"hugetlb_bytes", hugetlb},
          {"share", resident > 0 ? Json(static_cast<double>(anon + shmem + hugetlb) / static_cast<double>(resident))
                                 : missing("no page of the mapping is resident in this process")}};
}

void add_smaps(const RangeMaps& range, Json& mapping) {
  const char* const keys[] = {"rss_bytes", "pss_bytes", "shared_bytes", "huge_pages"};
  if (range.smaps.empty() || range.covers_more) {
    const std::string reason = !range.smaps_reason.empty() ? range.smaps_reason
                               : range.covers_more         ? "the kernel merged this mapping with a neighbour"
                                                           : "smaps has no entry for this mapping";
    for (const char* key : keys) mapping[key] = missing(reason);
    return;
  }
  // Rss, Pss and Shared_* leave pages of hugetlb out.
  const std::int64_t hugetlb = sum(range.smaps, "Private_Hugetlb") + sum(range.smaps, "Shared_Hugetlb");
  const std::int64_t resident = sum(range.smaps, "Rss") + hugetlb;
  mapping["rss_bytes"] = resident;
  mapping["pss_bytes"] = hugetlb > 0 ? missing("smaps has no Pss of hugetlb pages") : Json(sum(range.smaps, "Pss"));
  mapping["shared_bytes"] =
      sum(range.smaps, "Shared_Clean") + sum(range.smaps, "Shared_Dirty") + sum(range.smaps, "Shared_Hugetlb");
  mapping["huge_pages"] = huge_json(range.smaps, resident);
}

Json mapping_json(const SnapshotInput& input) {
  if (input.bytes == 0) return nullptr;  // no tables in this rank's memory (backing stub)
  const auto address = reinterpret_cast<std::uint64_t>(input.address);
  const RangeMaps range = read_range(address, input.bytes);
  if (range.smaps_reason.empty() && range.smaps.empty()) {
    fail(Exit::failure, "snapshot {}: nothing is mapped at {:#x}", input.label, address);
  }
  Json mapping = {{"address", fmt::format("{:#x}", address)}, {"bytes", input.bytes}, {"backing", backing(input)}};
  add_numa(range, mapping);
  add_smaps(range, mapping);
  Json numa_lines = Json::array();
  Json smaps_lines = Json::array();
  for (const NumaMapsEntry& entry : range.numa) numa_lines.push_back(entry.raw);
  for (const SmapsEntry& entry : range.smaps) smaps_lines.push_back(entry.raw);
  mapping["raw_numa_maps"] = std::move(numa_lines);
  mapping["raw_smaps"] = std::move(smaps_lines);
  return mapping;
}

// `unit`: the size of the mapping's pages; 0: not known.
Json table_pages(const SnapshotInput& input, const TableRange& table, std::size_t unit) {
  if (table.offset > input.bytes || table.bytes > input.bytes - table.offset) {
    fail(Exit::failure, "snapshot {}: layer {}'s table [{}, +{}) is outside its mapping of {} bytes", input.label,
         table.layer, table.offset, table.bytes, input.bytes);
  }
  PageNodes pages;
  try {
    const std::byte* address = input.address + table.offset;
    pages = unit > page_bytes() ? huge_page_nodes(address, table.bytes, unit)
                                : page_nodes(address, table.bytes, input.max_pages);
  } catch (const Error& error) {
    return missing(error.what());
  }
  Json by_node = Json::object();
  for (const auto& [node, count] : pages.node_pages) by_node[fmt::format("{}", node)] = count;
  Json unqueryable = Json::object();
  for (const auto& [number, count] : pages.unqueryable) unqueryable[errno_name(number)] = count;
  return {{"node_pages", std::move(by_node)},     {"unqueryable", std::move(unqueryable)},
          {"not_mapped_pages", pages.not_mapped}, {"queried_pages", pages.queried},
          {"total_pages", pages.total},           {"sampled", pages.sampled},
          {"share_error", pages.share_error}};
}

}  // namespace

std::string rank_snapshot_json(const SnapshotInput& input) {
  Json mapping = mapping_json(input);
  const bool known = mapping.is_object() && mapping.at("kernel_page_bytes").is_number();
  const auto unit = known ? mapping.at("kernel_page_bytes").get<std::size_t>() : 0;
  Json tables = Json::array();
  for (const TableRange& table : input.tables) {
    tables.push_back({{"layer", table.layer},
                      {"offset", table.offset},
                      {"bytes", table.bytes},
                      {"move_pages", table_pages(input, table, unit)}});
  }
  // File names are bytes; JSON wants UTF-8.
  return Json({{"label", input.label},
               {"rank_state", rank_state()},
               {"mapping", std::move(mapping)},
               {"tables", std::move(tables)}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace eb::collectors
