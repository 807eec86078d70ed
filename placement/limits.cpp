#include <sys/statvfs.h>

#include <algorithm>
#include <sstream>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/backing.h"
#include "placement/cgroup.h"
#include "placement/machine.h"
#include "placement/policy.h"

namespace eb::placement {

namespace {

// "MemAvailable:   123 kB", with or without "Node 0 " before it; bytes, -1 if absent.
std::int64_t meminfo_bytes(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(key + ":");
    if (at == std::string::npos || (at > 0 && line[at - 1] != ' ')) continue;
    std::istringstream in(line.substr(at + key.size() + 1));
    std::int64_t kib = -1;
    return in >> kib ? kib * 1024 : -1;
  }
  return -1;
}

std::string try_read(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return "";
  }
}

// What the kernel keeps of each node for itself: the sum of its zones' `min` watermarks (vm.min_free_kbytes), in bytes.
// An allocation that may come from this node alone gets none of it.
std::map<int, std::int64_t> read_node_reserves(const std::string& root) {
  std::map<int, std::int64_t> reserves;
  std::istringstream lines(try_read(root + "/proc/zoneinfo"));
  int node = -1;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "Node") words >> node;
    std::int64_t pages = 0;
    if (word == "min" && words >> pages) reserves[node] += pages * static_cast<std::int64_t>(page_bytes());
  }
  return reserves;
}

std::map<int, std::int64_t> read_node_free(const std::string& root, std::int64_t machine_total) {
  std::map<int, std::int64_t> free;
  std::int64_t total = 0;
  std::map<int, std::int64_t> reserves = read_node_reserves(root);
  for (const int node : read_node_numbers(root)) {
    const std::string text = try_read(fmt::format("{}/sys/devices/system/node/node{}/meminfo", root, node));
    const std::int64_t node_total = meminfo_bytes(text, "MemTotal");
    if (node_total < 0) continue;
    total += node_total;
    const std::int64_t unused = std::max<std::int64_t>(0, meminfo_bytes(text, "MemFree")) +
                                std::max<std::int64_t>(0, meminfo_bytes(text, "Inactive(file)")) +
                                std::max<std::int64_t>(0, meminfo_bytes(text, "SReclaimable"));
    free[node] = std::max<std::int64_t>(0, unused - reserves[node]);
  }
  // 2 %: rounding and pages that belong to no node, no more.
  const bool adds_up = machine_total > 0 && total >= machine_total - machine_total / 50;
  return adds_up ? free : std::map<int, std::int64_t>{};
}

}  // namespace

std::string human_bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

MemoryLimits read_memory_limits(const std::string& root) {
  MemoryLimits limits;
  struct statvfs shm {};
  if (::statvfs((root + kShmFolder).c_str(), &shm) == 0) {
    limits.shm_free_bytes = static_cast<std::int64_t>(shm.f_bavail) * static_cast<std::int64_t>(shm.f_frsize);
  }
  if (const auto cgroup = tightest_cgroup_memory(root)) limits.cgroup_free_bytes = cgroup->free_bytes();
  const std::string meminfo = try_read(root + "/proc/meminfo");
  limits.available_bytes = meminfo_bytes(meminfo, "MemAvailable");
  limits.node_free_bytes = read_node_free(root, meminfo_bytes(meminfo, "MemTotal"));
  return limits;
}

std::vector<std::string> missing_memory(const MemoryNeed& need, const MemoryLimits& limits) {
  std::vector<std::string> lines;
  const auto check = [&](const std::string& what, std::int64_t needed, std::int64_t free, const std::string& remedy) {
    if (free < 0 || needed <= free) return;
    lines.push_back(fmt::format("{}: needs {} ({} bytes), {} free ({} bytes); {}", what, human_bytes(needed), needed,
                                human_bytes(free), free, remedy));
  };
  const std::int64_t all = need.shared_bytes + need.private_bytes;
  check("/dev/shm", need.shm_file_bytes, limits.shm_free_bytes,
        "lower model.table_scale, use storage.backing memfd, or give the container a larger /dev/shm (docker "
        "--shm-size)");
  check("memory limit of the cgroup", all, limits.cgroup_free_bytes,
        "lower model.table_scale, or raise the container's memory limit");
  check("memory of this machine", all, limits.available_bytes, "lower model.table_scale, or free memory");
  // A node that this machine lacks is the policy's to refuse.
  const bool known = std::any_of(need.bind_nodes.begin(), need.bind_nodes.end(),
                                 [&](int node) { return limits.node_free_bytes.count(node) > 0; });
  if (known) {
    std::int64_t free = 0;
    for (const int node : need.bind_nodes) {
      const auto at = limits.node_free_bytes.find(node);
      if (at != limits.node_free_bytes.end()) free += at->second;
    }
    check("memory of NUMA nodes " + node_list(need.bind_nodes), need.bind_bytes, free,
          "lower model.table_scale, or bind to more or other nodes");
  }
  for (const auto& [node, bytes] : need.node_bytes) {
    const auto at = limits.node_free_bytes.find(node);
    if (at == limits.node_free_bytes.end()) continue;
    check(fmt::format("memory of NUMA node {}", node), bytes, at->second,
          "lower model.table_scale, or give this node less of the tables");
  }
  return lines;
}

}  // namespace eb::placement
