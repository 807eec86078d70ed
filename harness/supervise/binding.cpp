#include "harness/supervise/binding.h"

#include <algorithm>
#include <map>

#include "harness/base/error.h"
#include "harness/plan/values.h"
#include "harness/rank/backend_factory.h"
#include "placement/policy.h"

namespace eb::supervise {

namespace {

std::vector<int> device_nodes(const placement::Topology& topology) {
  std::vector<int> nodes;
  for (const placement::NumaNode& node : topology.nodes) {
    if (node.allowed && !node.cpus.empty()) nodes.push_back(node.id);
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

std::string no_cpus(const placement::NumaNode& node, const placement::Topology& topology) {
  if (node.cpus.empty()) return fmt::format("CPUs: there is no CPU of NUMA node {}, which has memory alone", node.id);
  return fmt::format("CPUs: this process may use no CPU of NUMA node {} (cpuset.cpus or taskset leave it {})", node.id,
                     placement::node_list(topology.allowed_cpus));
}

std::string no_memory(const placement::NumaNode& node, const placement::Topology& topology) {
  if (node.bytes <= 0) return fmt::format("memory policy bind:{}: NUMA node {} has no memory", node.id, node.id);
  std::vector<int> allowed;
  for (const placement::NumaNode& other : topology.nodes) {
    if (other.allowed) allowed.push_back(other.id);
  }
  return fmt::format("memory policy bind:{}: this process may not use the node (cpuset.mems allows {})", node.id,
                     placement::node_list(allowed));
}

// shard-near over GPUs: where ranks outnumber them, a GPU has room for as many as the fullest must take.
std::vector<std::size_t> shard_near_gpus(const plan::RunLayout& layout, const std::vector<int>& gpu_nodes) {
  const std::size_t ranks = layout.ranks.size();
  const std::size_t room = (ranks + gpu_nodes.size() - 1) / gpu_nodes.size();
  std::map<int, std::vector<std::size_t>> free;  // places by node, in the GPUs' order
  for (std::size_t turn = 0; turn < room; ++turn) {
    for (std::size_t gpu = 0; gpu < gpu_nodes.size(); ++gpu) free[gpu_nodes[gpu]].push_back(gpu);
  }
  std::map<int, std::vector<std::size_t>> readers;  // by TP rank
  for (const plan::RankPlace& place : layout.ranks) {
    readers[place.tp_rank].push_back(static_cast<std::size_t>(place.rank));
  }
  std::vector<std::size_t> device(ranks, 0);
  std::vector<std::size_t> left;  // ranks of shards that no node has room for
  for (const auto& [tp_rank, shard] : readers) {
    const auto fits = std::find_if(free.begin(), free.end(), [&](const auto& node) {
      return node.first >= 0 && node.second.size() >= shard.size();
    });
    if (fits == free.end()) {
      left.insert(left.end(), shard.begin(), shard.end());
      continue;
    }
    for (std::size_t i = 0; i < shard.size(); ++i) device[shard[i]] = fits->second[i];
    fits->second.erase(fits->second.begin(), fits->second.begin() + static_cast<std::ptrdiff_t>(shard.size()));
  }
  for (const std::size_t rank : left) {
    auto& places =
        std::find_if(free.begin(), free.end(), [](const auto& node) { return !node.second.empty(); })->second;
    device[rank] = places.front();
    places.erase(places.begin());
  }
  return device;
}

}  // namespace

std::vector<RankBinding> bind_ranks(const plan::Scenario& scenario, const plan::RunLayout& layout,
                                    const placement::Topology& topology, const std::vector<int>& gpu_nodes) {
  const bool gpus = !gpu_nodes.empty();
  const std::vector<int> devices = gpus ? gpu_nodes : device_nodes(topology);
  const std::size_t ranks = layout.ranks.size();
  std::vector<RankBinding> bindings(ranks);
  const bool shard_near = scenario.device.rank_map == "shard-near";
  const std::vector<std::size_t> near_gpus =
      gpus && shard_near ? shard_near_gpus(layout, gpu_nodes) : std::vector<std::size_t>{};
  for (std::size_t r = 0; r < ranks && !devices.empty(); ++r) {
    std::size_t device = gpus ? r % devices.size() : r * devices.size() / ranks;
    if (!scenario.device.rank_devices.empty()) {
      device = static_cast<std::size_t>(scenario.device.rank_devices.at(r));
      if (device >= devices.size()) {
        fail(Exit::skipped, "device.rank_map: rank {} wants device {}; {} here, counted from 0", r, device,
             gpus ? fmt::format("there are {} GPUs", devices.size())
                  : fmt::format("the CPU backend has {}, one a NUMA node,", devices.size()));
      }
    } else if (gpus && shard_near) {
      device = near_gpus[r];
    } else if (shard_near) {
      device = static_cast<std::size_t>(layout.ranks[r].tp_rank) * devices.size() /
               static_cast<std::size_t>(scenario.parallel.tp);
    }
    bindings[r].device = static_cast<int>(device);
    bindings[r].numa_node = devices[device];
  }
  const std::string& text = scenario.storage.bind_ranks;
  if (text == "none") return bindings;
  const std::vector<int> listed = text == "device-local" ? std::vector<int>{} : plan::nodes_as_written(text);
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
    if (bindings[r].cpus.empty()) bindings[r].refused.push_back({"CPUs", no_cpus(*node, topology)});
    if (node->allowed && node->bytes > 0) {
      bindings[r].memory_nodes = {id};
    } else {
      bindings[r].refused.push_back({"memory policy", no_memory(*node, topology)});
    }
  }
  return bindings;
}

void require_whole(const std::vector<RankBinding>& bindings, const plan::Scenario& scenario) {
  for (std::size_t r = 0; r < bindings.size(); ++r) {
    if (bindings[r].refused.empty()) continue;
    std::vector<std::string> texts;
    for (const control::LostPart& one : bindings[r].refused) texts.push_back(one.text);
    fail(Exit::failure,
         "binding_degraded: storage.bind_ranks {}: rank {}: {}; --allow-degraded runs without it and says so",
         scenario.storage.bind_ranks, r, fmt::join(texts, "; "));
  }
}

std::vector<int> nodes_of(const std::vector<RankBinding>& bindings) {
  std::vector<int> nodes;
  for (const RankBinding& binding : bindings) nodes.push_back(binding.numa_node);
  return nodes;
}

MachineLayout machine_layout(const plan::Scenario& scenario, const engram::Geometry& geometry,
                             const placement::Topology& topology, const std::vector<int>& gpu_nodes) {
  MachineLayout out;
  out.layout = plan::make_layout(scenario, geometry);
  out.bindings = bind_ranks(scenario, out.layout, topology, gpu_nodes);
  plan::place_backings(out.layout, scenario.storage, nodes_of(out.bindings));
  return out;
}

plan::RunLayout layout_here(const plan::Scenario& scenario, const engram::Geometry& geometry,
                            const placement::Topology& topology) {
  try {
    return machine_layout(scenario, geometry, topology, gpu_nodes_of(scenario)).layout;
  } catch (const Error&) {
    return plan::make_layout(scenario, geometry);
  }
}

std::vector<int> gpu_nodes_of(const plan::Scenario& scenario) {
  const bool cuda = rank::resolve_backend(scenario.device.backend) == plan::BackendKind::cuda;
  return cuda ? rank::cuda_device_nodes() : std::vector<int>{};
}

}  // namespace eb::supervise
