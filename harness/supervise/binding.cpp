#include "harness/supervise/binding.h"

#include <algorithm>
#include <charconv>

#include "harness/base/error.h"
#include "harness/rank/backend_factory.h"

namespace eb::supervise {

namespace {

std::vector<int> device_nodes(const placement::Topology& topology) {
  std::vector<int> nodes;
  for (const placement::NumaNode& node : topology.nodes) {
    if (node.allowed && !node.cpus.empty()) nodes.push_back(node.id);
  }
  return nodes;
}

// numactl's syntax: "0,2-3". The plan has checked the form.
std::vector<int> node_list(const std::string& text) {
  std::vector<int> nodes;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto [next, error] = std::from_chars(at, end, first);
    int last = first;
    if (error == std::errc() && next < end && *next == '-') {
      const auto second = std::from_chars(next + 1, end, last);
      next = second.ptr;
      error = second.ec;
    }
    if (error != std::errc() || last < first || last > 1023 || (next < end && *next != ',')) {
      fail(Exit::usage, "storage.bind_ranks: {} is no list of NUMA nodes", text);
    }
    for (int node = first; node <= last; ++node) nodes.push_back(node);
    at = next + 1;
  }
  return nodes;
}

std::vector<int> allowed_of(const placement::NumaNode& node, const placement::Topology& topology) {
  std::vector<int> cpus;
  for (const int cpu : node.cpus) {
    const auto& allowed = topology.allowed_cpus;
    if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::vector<RankBinding> bind_ranks(const plan::Scenario& scenario, const plan::RunLayout& layout,
                                    const placement::Topology& topology, const std::vector<int>& gpu_nodes) {
  const bool gpus = !gpu_nodes.empty();
  const std::vector<int> devices = gpus ? gpu_nodes : device_nodes(topology);
  const std::size_t ranks = layout.ranks.size();
  std::vector<RankBinding> bindings(ranks);
  for (std::size_t r = 0; r < ranks && !devices.empty(); ++r) {
    std::size_t device = gpus ? r % devices.size() : r * devices.size() / ranks;
    if (!scenario.device.rank_devices.empty()) {
      device = static_cast<std::size_t>(scenario.device.rank_devices.at(r));
      if (device >= devices.size()) {
        fail(Exit::skipped, "device.rank_map: rank {} wants device {}; {} here, counted from 0", r, device,
             gpus ? fmt::format("there are {} GPUs", devices.size())
                  : fmt::format("the CPU backend has {}, one a NUMA node,", devices.size()));
      }
    } else if (!gpus && scenario.device.rank_map == "shard-near") {
      device = static_cast<std::size_t>(layout.ranks[r].tp_rank) * devices.size() /
               static_cast<std::size_t>(scenario.parallel.tp);
    }
    bindings[r].numa_node = devices[device];
  }
  const std::string& text = scenario.storage.bind_ranks;
  if (text == "none") return bindings;
  const std::vector<int> listed = text == "device-local" ? std::vector<int>{} : node_list(text);
  for (std::size_t r = 0; r < ranks; ++r) {
    const int id = listed.empty() ? bindings[r].numa_node : listed[r % listed.size()];
    if (id < 0) {
      fail(Exit::failure,
           "storage.bind_ranks device-local: the system states no NUMA node for the device of rank {}; name the nodes",
           r);
    }
    const placement::NumaNode* node = topology.node(id);
    if (node == nullptr) fail(Exit::skipped, "storage.bind_ranks {}: this machine has no NUMA node {}", text, id);
    bindings[r].cpus = allowed_of(*node, topology);
    if (bindings[r].cpus.empty()) {
      fail(Exit::failure, "storage.bind_ranks {}: this process may use no CPU of NUMA node {}", text, id);
    }
    bindings[r].memory_nodes = {id};
  }
  return bindings;
}

std::vector<int> gpu_nodes_of(const plan::Scenario& scenario) {
  const bool cuda = rank::resolve_backend(scenario.device.backend) == plan::BackendKind::cuda;
  return cuda ? rank::cuda_device_nodes() : std::vector<int>{};
}

}  // namespace eb::supervise
