// What a machine has beside its topology: huge page pools, PCI links, the limits of this process. Of the running
// machine from sysfs and /proc; of one that was read from a file only what stands there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace eb::placement {

// Numbers of the NUMA nodes that sysfs lists, ascending; they may have holes. `root` stands before every path, for
// tests.
[[nodiscard]] std::vector<int> read_node_numbers(const std::string& root = "");

struct HugePagePool {
  std::int64_t page_bytes = 0;
  std::int64_t total = 0;  // pages
  std::int64_t free = 0;   // -1: not stated
};
// Pools of one NUMA node, by page size; empty where the kernel has none.
[[nodiscard]] std::vector<HugePagePool> read_huge_page_pools(int node, const std::string& root = "");

// Pools by NUMA node as hwloc's XML states them (`free` never). Errors: Error(failure) where it is not hwloc's XML.
[[nodiscard]] std::map<int, std::vector<HugePagePool>> huge_page_pools_in(const std::string& hwloc_xml);

// A PCI device's link as sysfs shows it now, and what device and slot can do. Speeds in GT/s a lane.
struct PciLink {
  double now_gt_per_s = 0;  // falls while the device is idle
  int now_width = 0;
  double max_gt_per_s = 0;
  int max_width = 0;
};
// nullopt where sysfs shows no link (a virtual or integrated device).
[[nodiscard]] std::optional<PciLink> read_pci_link(const std::string& bus_id, const std::string& root = "");

struct MemlockLimit {  // bytes; -1: unlimited
  std::int64_t soft_bytes = 0;
  std::int64_t hard_bytes = 0;
};
// Errors: Error(failure).
[[nodiscard]] MemlockLimit read_memlock_limit();

}  // namespace eb::placement
