#include "placement/huge_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "harness/base/os.h"
#include "placement/backing.h"
#include "placement/machine.h"
#include "placement/topology.h"

namespace eb::placement {

namespace {

std::string try_read(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return "";
  }
}

std::int64_t read_count(const std::string& path) {
  std::istringstream in(try_read(path));
  std::int64_t value = 0;
  return in >> value ? value : 0;
}

// "always [madvise] never" -> "madvise"; "" where the file is not there.
std::string chosen(const std::string& path) {
  const std::string text = try_read(path);
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']', open);
  return open == std::string::npos || close == std::string::npos ? "" : text.substr(open + 1, close - open - 1);
}

constexpr const char* kThp = "/sys/kernel/mm/transparent_hugepage/";
constexpr const char* kThpOfSize = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/";

// The choice that counts for pages of 2 MiB: kernels from 6.8 on (shared memory: 6.11) have one a size, which may point
// to the general one.
std::string effective_choice(const std::string& root, const char* file) {
  const std::string of_size = chosen(root + kThpOfSize + file);
  return of_size.empty() || of_size == "inherit" ? chosen(root + kThp + file) : of_size;
}

// The option huge= of the tmpfs on /dev/shm; "" where it has none.
std::string shm_mount_huge(const std::string& root) {
  std::istringstream lines(try_read(root + "/proc/self/mounts"));
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string device, point, type, options;
    if (!(in >> device >> point >> type >> options) || point != kShmFolder || type != "tmpfs") continue;
    found.clear();  // a later mount covers an earlier one
    const std::size_t at = options.find("huge=");
    if (at != std::string::npos) found = options.substr(at + 5, options.find(',', at) - at - 5);
  }
  return found;
}

std::string nodes_text(const std::vector<int>& nodes) {
  if (nodes.empty()) return "this machine";
  return fmt::format("NUMA node{} {}", nodes.size() > 1 ? "s" : "", node_list(nodes));
}

std::string pools_text(const HugePools& pools) {
  std::string text;
  for (const auto& [node, pool] : pools.nodes) {
    text += fmt::format("{}node {}: {} of {} free", text.empty() ? "" : ", ", node, pool.free, pool.total);
  }
  return text.empty() ? "this kernel has no pool of that size" : text;
}

}  // namespace

std::vector<PoolDemand> pool_demands(const EffectivePolicy& policy,
                                     const std::vector<std::int64_t>& pages_of_backings) {
  std::int64_t all = 0;
  std::int64_t each = 0;
  const auto parts = static_cast<std::int64_t>(std::max<std::size_t>(1, policy.nodes.size()));
  for (const std::int64_t pages : pages_of_backings) {
    all += pages;
    each += (pages + parts - 1) / parts;
  }
  std::vector<PoolDemand> demands;
  if (policy.kind == plan::PolicyKind::bind) demands.push_back({policy.nodes, all});
  if (policy.kind == plan::PolicyKind::interleave) {
    for (const int node : policy.nodes) demands.push_back({{node}, each});
  }
  for (std::size_t i = 0; policy.kind == plan::PolicyKind::weighted && i < policy.nodes.size(); ++i) {
    const std::int64_t sum = std::accumulate(policy.weights.begin(), policy.weights.end(), std::int64_t{0});
    std::int64_t share = 0;
    for (const std::int64_t pages : pages_of_backings) share += (pages * policy.weights[i] + sum - 1) / sum;
    demands.push_back({{policy.nodes[i]}, share});
  }
  demands.push_back({{}, all});
  return demands;
}

HugePools read_huge_pools(std::int64_t page_bytes, const std::string& root) {
  HugePools pools;
  pools.page_bytes = page_bytes;
  for (const int node : read_node_numbers(root)) {
    for (const HugePagePool& pool : read_huge_page_pools(node, root)) {
      if (pool.page_bytes == page_bytes) pools.nodes[node] = {pool.total, pool.free};
    }
  }
  const std::string folder = fmt::format("{}/sys/kernel/mm/hugepages/hugepages-{}kB/", root, page_bytes / 1024);
  pools.reserved = read_count(folder + "resv_hugepages");
  pools.overcommit = std::max<std::int64_t>(
      0, read_count(folder + "nr_overcommit_hugepages") - read_count(folder + "surplus_hugepages"));
  return pools;
}

PoolShortage pool_shortage(plan::Backing backing, const std::vector<PoolDemand>& demands, const HugePools& pools) {
  const std::string size = human_bytes(pools.page_bytes);
  PoolShortage worst;
  for (const PoolDemand& demand : demands) {
    HugePools::Node have;
    for (const auto& [node, pool] : pools.nodes) {
      if (!demand.nodes.empty() && std::find(demand.nodes.begin(), demand.nodes.end(), node) == demand.nodes.end()) {
        continue;
      }
      have.total += pool.total;
      have.free += pool.free;
    }
    // Pages that other mappings have reserved are of no node in particular: they count against the machine's.
    const std::int64_t reserved = demand.nodes.empty() ? pools.reserved : 0;
    const std::int64_t usable = std::max<std::int64_t>(0, have.free - reserved) + pools.overcommit;
    if (demand.pages <= usable) continue;
    const bool no_pool = have.total == 0 && pools.overcommit == 0;
    const std::string remedy = fmt::format(
        "reserve pages as root (nr_hugepages in /sys/devices/system/node/node*/hugepages/hugepages-{}kB), or use "
        "storage.backing shm",
        pools.page_bytes / 1024);
    const std::string need =
        fmt::format("the tables need {} ({})", demand.pages, human_bytes(demand.pages * pools.page_bytes));
    const std::string text =
        no_pool ? fmt::format("storage.backing {}: {} has no pool of {} huge pages ({}); {}; {}", plan::name(backing),
                              nodes_text(demand.nodes), size, pools_text(pools), need, remedy)
                : fmt::format(
                      "storage.backing {}: the pool of {} huge pages of {} is too small: {}, {} can be had ({}; "
                      "{} reserved by other mappings); {}",
                      plan::name(backing), size, nodes_text(demand.nodes), need, usable, pools_text(pools),
                      pools.reserved, remedy);
    if (no_pool) return {Exit::skipped, text};
    if (worst.text.empty()) worst = {Exit::failure, text};
  }
  return worst;
}

ThpSource shm_thp_source(const std::string& root) {
  const std::string general = chosen(root + kThp + std::string("shmem_enabled"));
  if (general.empty() || general == "deny") return ThpSource::none;
  const auto gives = [](const std::string& choice) {
    return choice == "always" || choice == "within_size" || choice == "advise" || choice == "force";
  };
  if (general == "force" || gives(effective_choice(root, "shmem_enabled"))) return ThpSource::memfd;
  return gives(shm_mount_huge(root)) ? ThpSource::dev_shm : ThpSource::none;
}

std::string thp_obstacle(plan::Backing backing, const std::string& root) {
  const bool shared = backing == plan::Backing::shm_thp;
  const char* file = shared ? "shmem_enabled" : "enabled";
  const std::string choice = effective_choice(root, file);
  const std::string path = kThp + std::string(file);
  if (choice.empty()) {
    return fmt::format("storage.backing {}: this kernel has no transparent huge pages for it ({} is not there)",
                       plan::name(backing), path);
  }
  if (!shared) {
    if (choice == "always" || choice == "madvise") return "";
    return fmt::format(
        "storage.backing anon-thp: {} is {}: the kernel makes no huge pages; set it to madvise, or use "
        "storage.backing anon",
        path, choice);
  }
  if (shm_thp_source(root) != ThpSource::none) return "";
  return fmt::format(
      "storage.backing shm-thp: {} is {} and /dev/shm is mounted with huge={}: the kernel makes no huge "
      "pages of shared memory; set the first to advise, or use storage.backing shm",
      path, choice, shm_mount_huge(root).empty() ? "never" : shm_mount_huge(root));
}

}  // namespace eb::placement
