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
  std::vector<int> cpus;
  bool allowed = true;  // by cpuset.mems
};

struct Topology {
  std::vector<NumaNode> nodes;              // ascending id
  std::vector<std::vector<int>> distances;  // [from][to], empty where the system states none
  std::vector<int> allowed_cpus;            // of this process
  std::string hwloc_xml;

  [[nodiscard]] const NumaNode* node(int id) const noexcept;
};

[[nodiscard]] Topology read_topology();                                     // this machine
[[nodiscard]] Topology read_topology_xml(const std::string& path);          // Errors: Error(usage)
[[nodiscard]] Topology synthetic_topology(const std::string& description);  // hwloc's synthetic strings

}  // namespace eb::placement
