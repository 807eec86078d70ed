#include "placement/machine.h"

#include <dirent.h>
#include <hwloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::placement {

namespace {

constexpr const char* kNodes = "/sys/devices/system/node";

// Empty where there is no such folder.
std::vector<std::string> names_in(const std::string& folder) {
  struct CloseFolder {
    void operator()(DIR* opened) const noexcept { ::closedir(opened); }
  };
  std::vector<std::string> names;
  const std::unique_ptr<DIR, CloseFolder> opened(::opendir(folder.c_str()));
  if (!opened) return names;
  while (const dirent* entry = ::readdir(opened.get())) names.emplace_back(entry->d_name);
  return names;
}

std::optional<double> read_number(const std::string& path) {
  try {
    return std::stod(read_file(path));  // "16.0 GT/s PCIe", "16"
  } catch (const std::exception&) {     // no file, "Unknown"
    return std::nullopt;
  }
}

std::int64_t to_limit(rlim_t value) { return value == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(value); }

}  // namespace

std::vector<int> read_node_numbers(const std::string& root) {
  std::vector<int> numbers;
  for (const std::string& name : names_in(root + kNodes)) {
    int number = -1;
    int length = 0;
    if (std::sscanf(name.c_str(), "node%d%n", &number, &length) != 1) continue;
    if (number >= 0 && static_cast<std::size_t>(length) == name.size()) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::vector<HugePagePool> read_huge_page_pools(int node, const std::string& root) {
  std::vector<HugePagePool> pools;
  const std::string folder = fmt::format("{}{}/node{}/hugepages", root, kNodes, node);
  for (const std::string& name : names_in(folder)) {
    long long kib = 0;
    if (std::sscanf(name.c_str(), "hugepages-%lldkB", &kib) != 1) continue;
    const std::string pool = folder + "/" + name;
    const auto total = read_number(pool + "/nr_hugepages");
    const auto free = read_number(pool + "/free_hugepages");
    if (!total || !free) continue;
    pools.push_back({kib * 1024, static_cast<std::int64_t>(*total), static_cast<std::int64_t>(*free)});
  }
  std::sort(pools.begin(), pools.end(),
            [](const HugePagePool& a, const HugePagePool& b) { return a.page_bytes < b.page_bytes; });
  return pools;
}

std::map<int, std::vector<HugePagePool>> huge_page_pools_in(const std::string& hwloc_xml) {
  struct Destroy {
    void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
  };
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) fail(Exit::failure, "hwloc could not start");
  const std::unique_ptr<hwloc_topology, Destroy> topology(raw);
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  // The length counts the end mark.
  if (hwloc_topology_set_xmlbuffer(raw, hwloc_xml.c_str(), static_cast<int>(hwloc_xml.size() + 1)) != 0 ||
      hwloc_topology_load(raw) != 0) {
    fail(Exit::failure, "huge page pools: the topology is not in hwloc's XML");
  }
  std::map<int, std::vector<HugePagePool>> pools;
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    std::vector<HugePagePool>& own = pools[static_cast<int>(node->os_index)];
    const auto& memory = node->attr->numanode;
    for (unsigned i = 0; i < memory.page_types_len; ++i) {
      const auto& type = memory.page_types[i];
      own.push_back({static_cast<std::int64_t>(type.size), static_cast<std::int64_t>(type.count), -1});
    }
    std::sort(own.begin(), own.end(),
              [](const HugePagePool& a, const HugePagePool& b) { return a.page_bytes < b.page_bytes; });
    if (!own.empty()) own.erase(own.begin());  // the base page size, which is no pool
  }
  return pools;
}

std::optional<PciLink> read_pci_link(const std::string& bus_id, const std::string& root) {
  const std::string folder = root + "/sys/bus/pci/devices/" + bus_id + "/";
  const auto now_speed = read_number(folder + "current_link_speed");
  const auto now_width = read_number(folder + "current_link_width");
  const auto max_speed = read_number(folder + "max_link_speed");
  const auto max_width = read_number(folder + "max_link_width");
  if (!now_speed || !now_width || !max_speed || !max_width) return std::nullopt;
  // A device without PCIe capability shows a width of 0 (or 255).
  if (*max_width < 1 || *max_width > 64) return std::nullopt;
  return PciLink{*now_speed, static_cast<int>(*now_width), *max_speed, static_cast<int>(*max_width)};
}

MemlockLimit read_memlock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) fail_errno(errno, "getrlimit(RLIMIT_MEMLOCK)");
  return {to_limit(limit.rlim_cur), to_limit(limit.rlim_max)};
}

}  // namespace eb::placement
