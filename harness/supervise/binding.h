// Which NUMA node each rank's device is on, and what storage.bind_ranks binds the rank to. Pure.
#pragma once

#include <vector>

#include "harness/control/messages.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "placement/topology.h"

namespace eb::supervise {

struct RankBinding {
  int device = -1;                // index into the devices; -1: there is none
  int numa_node = -1;             // of the rank's device; CPU backend: its assigned node
  std::vector<int> cpus;          // empty: unchanged
  std::vector<int> memory_nodes;  // empty: unchanged
  // Parts that this process cannot give the rank (cpusets, a node without CPUs or memory); their list is empty.
  std::vector<control::LostPart> refused{};
};

// One a rank. The nodes that this process may use and that have CPUs are the devices of the CPU backend; `default`
// deals the ranks out over them in contiguous, equal parts, a list names one a rank, shard-near puts the readers of one
// TP shard on one node. With `gpu_nodes` (the NUMA node of each CUDA device, -1: not stated) the devices are these: a
// list names one a rank, `default` takes them in turn, and shard-near gives each TP shard in turn the first node that
// still has a device for each of its readers; readers that no node has room for take what is left. bind_ranks: none,
// device-local, or a list of nodes taken in turn; binds CPUs and memory, as numactl --cpunodebind --membind does.
// CPUs and memory are parts of their own: what cpusets keep from this process is in `refused`. Errors: Error(skipped)
// for a node or device that this machine lacks; Error(failure) for device-local where a device's node is not stated.
[[nodiscard]] std::vector<RankBinding> bind_ranks(const plan::Scenario& scenario, const plan::RunLayout& layout,
                                                  const placement::Topology& topology,
                                                  const std::vector<int>& gpu_nodes = {});
// Errors: Error(failure) `binding_degraded` for the first rank with a part in `refused`.
void require_whole(const std::vector<RankBinding>& bindings, const plan::Scenario& scenario);

// Who reads what on this machine: make_layout(), with copies and consumer's nodes from the devices' nodes. Errors: as
// make_layout, bind_ranks and place_backings.
struct MachineLayout {
  plan::RunLayout layout;
  std::vector<RankBinding> bindings;
};
[[nodiscard]] MachineLayout machine_layout(const plan::Scenario& scenario, const engram::Geometry& geometry,
                                           const placement::Topology& topology, const std::vector<int>& gpu_nodes);
// As above for this machine; where it cannot be (which preflight() reports), the layout without it.
[[nodiscard]] plan::RunLayout layout_here(const plan::Scenario& scenario, const engram::Geometry& geometry,
                                          const placement::Topology& topology);

[[nodiscard]] std::vector<int> nodes_of(const std::vector<RankBinding>& bindings);

// `gpu_nodes` of a scenario: empty where it does not run on CUDA.
[[nodiscard]] std::vector<int> gpu_nodes_of(const plan::Scenario& scenario);

}  // namespace eb::supervise
