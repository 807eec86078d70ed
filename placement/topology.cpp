#include "placement/topology.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <sstream>

#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::placement {

namespace {

constexpr unsigned kNvidia = 0x10de;

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const noexcept { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<hwloc_topology, DestroyTopology>;

Handle make_handle() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) fail(Exit::failure, "hwloc could not start");
  return Handle(topology);
}

std::vector<int> to_list(hwloc_const_bitmap_t bitmap) {
  std::vector<int> list;
  // A bitmap without end (hwloc's "all") has no last bit; it means "not stated" here.
  if (bitmap == nullptr || hwloc_bitmap_weight(bitmap) < 0) return list;
  for (int i = hwloc_bitmap_first(bitmap); i >= 0; i = hwloc_bitmap_next(bitmap, i)) list.push_back(i);
  return list;
}

// hwloc gives a node without CPUs the cpuset of what its memory is attached to (one socket, or the whole machine). A
// CPU has one node: the one with the smallest cpuset that holds it, and of equal ones that with the lowest id. `nodes`:
// by ascending id, with hwloc's cpusets.
void leave_each_cpu_one_node(std::vector<NumaNode>& nodes) {
  std::map<int, const NumaNode*> owner;
  for (const NumaNode& node : nodes) {
    for (const int cpu : node.cpus) {
      const NumaNode*& best = owner.try_emplace(cpu, &node).first->second;
      if (node.cpus.size() < best->cpus.size()) best = &node;
    }
  }
  std::map<int, std::vector<int>> cpus;  // by node id; sizes must stand until all owners are found
  for (const auto& [cpu, node] : owner) cpus[node->id].push_back(cpu);
  for (NumaNode& node : nodes) node.cpus = std::move(cpus[node.id]);
}

// What the kernel says of this machine goes before what follows from hwloc's cpusets.
void take_kernels_cpus(std::vector<NumaNode>& nodes) {
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> cpus(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  if (!cpus) throw std::bad_alloc();
  for (NumaNode& node : nodes) {
    std::string text;
    try {
      text = read_file(fmt::format("/sys/devices/system/node/node{}/cpulist", node.id));
    } catch (const Error&) {
      continue;  // no sysfs in this container
    }
    text.erase(text.find_last_not_of(" \n") + 1);
    if (hwloc_bitmap_list_sscanf(cpus.get(), text.c_str()) == 0) node.cpus = to_list(cpus.get());
  }
}

std::vector<NumaNode> nodes_of(hwloc_topology_t topology) {
  std::vector<NumaNode> nodes;
  const hwloc_const_nodeset_t allowed = hwloc_topology_get_allowed_nodeset(topology);
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr;) {
    NumaNode node;
    node.id = static_cast<int>(object->os_index);
    node.bytes = static_cast<std::int64_t>(object->attr->numanode.local_memory);
    node.cpus = to_list(object->cpuset);
    node.allowed = allowed == nullptr || hwloc_bitmap_isset(allowed, object->os_index) != 0;
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  leave_each_cpu_one_node(nodes);
  return nodes;
}

// hwloc keeps the kernel's SLIT as "NUMALatency", in its own order of objects.
std::vector<std::vector<int>> distances_of(hwloc_topology_t topology, const std::vector<NumaNode>& nodes) {
  unsigned count = 1;
  hwloc_distances_s* found = nullptr;
  if (hwloc_distances_get_by_name(topology, "NUMALatency", &count, &found, 0) != 0 || count == 0) {
    count = 1;  // a file of hwloc 1 has the matrix without the name
    constexpr unsigned long kLatency = HWLOC_DISTANCES_KIND_MEANS_LATENCY;
    if (hwloc_distances_get_by_type(topology, HWLOC_OBJ_NUMANODE, &count, &found, kLatency, 0) != 0 || count == 0) {
      return {};
    }
  }
  std::vector<std::vector<int>> matrix(nodes.size(), std::vector<int>(nodes.size(), kNoDistance));
  const auto index_of = [&](hwloc_obj_t object) {
    const auto at = std::find_if(nodes.begin(), nodes.end(),
                                 [&](const NumaNode& node) { return node.id == static_cast<int>(object->os_index); });
    return static_cast<std::size_t>(at - nodes.begin());
  };
  for (unsigned i = 0; i < found->nbobjs; ++i) {
    for (unsigned j = 0; j < found->nbobjs; ++j) {
      if (found->objs[i] == nullptr || found->objs[j] == nullptr) continue;
      const std::size_t from = index_of(found->objs[i]);
      const std::size_t to = index_of(found->objs[j]);
      if (from < nodes.size() && to < nodes.size()) {
        matrix[from][to] = static_cast<int>(found->values[i * found->nbobjs + j]);
      }
    }
  }
  hwloc_distances_release(topology, found);
  return matrix;
}

// hwloc leaves the matrix of a one-node machine out; the kernel states it.
std::vector<std::vector<int>> sysfs_distances(const std::vector<NumaNode>& nodes) {
  std::vector<std::vector<int>> matrix;
  for (const NumaNode& node : nodes) {
    std::string text;
    try {
      text = read_file(fmt::format("/sys/devices/system/node/node{}/distance", node.id));
    } catch (const Error&) {
      return {};
    }
    std::istringstream in(text);
    std::vector<int> row;
    for (int value = 0; in >> value;) row.push_back(value);
    if (row.size() != nodes.size()) return {};
    matrix.push_back(std::move(row));
  }
  return matrix;
}

// NUMA node of a device: of the part of the machine it hangs from, -1 where that part holds several. One without CPUs
// counts where it is alone: what memory lies behind a socket does not move the socket's devices.
int node_of(hwloc_topology_t topology, hwloc_obj_t device, const std::vector<NumaNode>& nodes) {
  const hwloc_obj_t parent = hwloc_get_non_io_ancestor_obj(topology, device);
  if (parent == nullptr || parent->nodeset == nullptr) return -1;
  if (hwloc_bitmap_weight(parent->nodeset) == 1) return hwloc_bitmap_first(parent->nodeset);
  std::vector<int> with_cpus;
  for (const NumaNode& node : nodes) {
    const bool near = hwloc_bitmap_isset(parent->nodeset, static_cast<unsigned>(node.id)) != 0;
    if (near && !node.cpus.empty()) with_cpus.push_back(node.id);
  }
  return with_cpus.size() == 1 ? with_cpus.front() : -1;
}

std::string device_kind(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  switch (pci.class_id >> 8) {
    case 0x03:
    case 0x12:
      return pci.vendor_id == kNvidia ? "gpu" : "";
    case 0x02:
      return "network";
    case 0x01:
      return "storage";
    default:
      return "";
  }
}

std::vector<PciDevice> devices_of(hwloc_topology_t topology, const std::vector<NumaNode>& nodes) {
  std::vector<PciDevice> devices;
  for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_pcidev(topology, object)) != nullptr;) {
    const auto& pci = object->attr->pcidev;
    PciDevice device;
    device.kind = device_kind(pci);
    if (device.kind.empty()) continue;
    device.bus_id = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", unsigned{pci.domain}, unsigned{pci.bus}, unsigned{pci.dev},
                                unsigned{pci.func});
    const char* vendor = hwloc_obj_get_info_by_name(object, "PCIVendor");
    const char* model = hwloc_obj_get_info_by_name(object, "PCIDevice");
    device.name = vendor != nullptr && model != nullptr
                      ? fmt::format("{} {}", vendor, model)
                      : fmt::format("{:04x}:{:04x}", unsigned{pci.vendor_id}, unsigned{pci.device_id});
    device.node = node_of(topology, object, nodes);
    device.link_gb_per_s = static_cast<double>(pci.linkspeed);
    devices.push_back(std::move(device));
  }
  std::sort(devices.begin(), devices.end(), [](const PciDevice& a, const PciDevice& b) { return a.bus_id < b.bus_id; });
  return devices;
}

std::string xml_of(hwloc_topology_t topology) {
  char* buffer = nullptr;
  int length = 0;
  if (hwloc_topology_export_xmlbuffer(topology, &buffer, &length, 0) != 0) {
    fail(Exit::failure, "hwloc could not write the topology as XML");
  }
  std::string text(buffer);  // `length` counts the end mark
  hwloc_free_xmlbuffer(topology, buffer);
  return text;
}

Topology describe(hwloc_topology_t topology) {
  Topology result;
  result.nodes = nodes_of(topology);
  result.distances = distances_of(topology, result.nodes);
  result.allowed_cpus = to_list(hwloc_topology_get_allowed_cpuset(topology));
  result.devices = devices_of(topology, result.nodes);
  result.hwloc_xml = xml_of(topology);
  return result;
}

}  // namespace

std::vector<int> own_cpus() {
  // 8192 CPUs: the largest kernel configuration of the distributions; the call fails with EINVAL if the mask is short.
  constexpr int kMaxCpus = 8192;
  std::vector<unsigned long> mask(kMaxCpus / (8 * sizeof(unsigned long)), 0);
  auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
  const std::size_t bytes = kMaxCpus / 8;
  if (::sched_getaffinity(0, bytes, set) != 0) fail_errno(errno, "sched_getaffinity of this process");
  std::vector<int> cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set)) cpus.push_back(cpu);
  }
  return cpus;
}

const NumaNode* Topology::node(int id) const noexcept {
  const auto at = std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& node) { return node.id == id; });
  return at == nodes.end() ? nullptr : &*at;
}

Topology read_topology(Devices devices) {
  // First: where the call is refused, hwloc would ask for ever.
  std::vector<int> allowed_cpus = own_cpus();
  const Handle handle = make_handle();
  // Nodes that the cpuset excludes are part of the machine: "not allowed" and "not there" are different answers.
  hwloc_topology_set_flags(handle.get(), HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (devices == Devices::read) {
    hwloc_topology_set_io_types_filter(handle.get(), HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  }
  if (hwloc_topology_load(handle.get()) != 0) fail_errno(errno, "hwloc could not read this machine's topology");
  Topology result = describe(handle.get());
  // HWLOC_XMLFILE makes hwloc speak of another machine.
  if (hwloc_topology_is_thissystem(handle.get()) != 0) take_kernels_cpus(result.nodes);
  if (result.distances.empty()) result.distances = sysfs_distances(result.nodes);
  result.allowed_cpus = std::move(allowed_cpus);
  return result;
}

Topology read_topology_xml(const std::string& path) {
  // hwloc looks into a file only when it loads it, and says little then: the common mistake is named first.
  if (::access(path.c_str(), R_OK) != 0) {
    fail(Exit::usage, "topology file {}: {}; give an XML file that lstopo or `engram-bench topo --xml` wrote", path,
         std::strerror(errno));
  }
  const Handle handle = make_handle();
  hwloc_topology_set_flags(handle.get(), HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_io_types_filter(handle.get(), HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_set_xml(handle.get(), path.c_str()) != 0 || hwloc_topology_load(handle.get()) != 0) {
    fail(Exit::usage,
         "topology file {}: not a topology in hwloc's XML; write one with lstopo or `engram-bench topo --xml`", path);
  }
  Topology found = describe(handle.get());
  for (std::size_t i = 0; i < found.nodes.size(); ++i) {
    if (found.nodes[i].bytes < 0) {
      fail(Exit::usage, "topology file {}: NUMA node {} has more memory than there can be", path, found.nodes[i].id);
    }
    if (i > 0 && found.nodes[i].id == found.nodes[i - 1].id) {
      fail(Exit::usage, "topology file {}: two NUMA nodes are number {}", path, found.nodes[i].id);
    }
  }
  return found;
}

Topology synthetic_topology(const std::string& description) {
  const Handle handle = make_handle();
  if (hwloc_topology_set_synthetic(handle.get(), description.c_str()) != 0 || hwloc_topology_load(handle.get()) != 0) {
    fail(Exit::usage,
         "topology \"{}\": not a synthetic description that hwloc understands, e.g. \"pack:2 core:4 pu:1\"",
         description);
  }
  return describe(handle.get());
}

}  // namespace eb::placement
