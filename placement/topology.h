// What the machine is: NUMA nodes, their memory and CPUs, distances. Read through hwloc; XML or synthetic input for
// tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eb::placement {

struct NumaNode {
  int id = 0;
  std::int64_t bytes = 0;  // MemTotal
  std::vector<int> cpus;   // ascending; each CPU is of one node alone, a node that only has memory has none
  bool allowed = true;     // by cpuset.mems
};

// A PCI device that a rank could use, or that stands between: GPUs (NVIDIA display controllers), network cards, disks.
struct PciDevice {
  std::string bus_id;        // "0000:18:00.0"
  std::string kind;          // gpu, network, storage
  std::string name;          // vendor and device as hwloc knows them, else the ids
  int node = -1;             // NUMA node; -1: the system states none
  double link_gb_per_s = 0;  // PCIe link as hwloc reads it from the configuration space; 0: not stated
};

inline constexpr int kNoDistance = -1;

struct Topology {
  std::vector<NumaNode> nodes;  // ascending id
  // [from][to] by index into `nodes`, kNoDistance where a file lacks the pair; empty where the system states none.
  std::vector<std::vector<int>> distances;
  std::vector<int> allowed_cpus;   // of this process; of a file: all CPUs that it allows
  std::vector<PciDevice> devices;  // ascending bus id; empty where devices were not asked for
  std::string hwloc_xml;

  [[nodiscard]] const NumaNode* node(int id) const noexcept;
};

// Looking through PCI devices takes tens of ms on a large server; ranks do without.
enum class Devices { skip, read };

// This machine. Errors: Error(failure) where hwloc cannot read it.
[[nodiscard]] Topology read_topology(Devices devices = Devices::read);
// CPUs that the calling thread may run on, ascending. Errors: Error(failure).
[[nodiscard]] std::vector<int> own_cpus();

// A file that hwloc wrote (`lstopo x.xml`, `topo --xml`). Errors: Error(usage): no such file, not hwloc's XML.
[[nodiscard]] Topology read_topology_xml(const std::string& path);
// hwloc's synthetic strings ("pack:2 numa:1 core:4 pu:1"). Errors: Error(usage).
[[nodiscard]] Topology synthetic_topology(const std::string& description);

}  // namespace eb::placement
