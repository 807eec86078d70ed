// Which NUMA node each rank's device is on, and what storage.bind_ranks binds the rank to. Pure.
#pragma once

#include <vector>

#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "placement/topology.h"

namespace eb::supervise {

struct RankBinding {
  int numa_node = -1;             // of the rank's device; CPU backend: its assigned node
  std::vector<int> cpus;          // empty: unchanged
  std::vector<int> memory_nodes;  // empty: unchanged
};

// One a rank. The nodes that this process may use and that have CPUs are the devices of the CPU backend; `default`
// deals the ranks out over them in contiguous, equal parts, a list names one a rank, shard-near puts the readers of one
// TP shard on one node. bind_ranks: none, device-local, or a list of nodes taken in turn; binds CPUs and memory, as
// numactl --cpunodebind --membind does. Errors: Error(skipped) for a node that this machine lacks.
[[nodiscard]] std::vector<RankBinding> bind_ranks(const plan::Scenario& scenario, const plan::RunLayout& layout,
                                                  const placement::Topology& topology);

}  // namespace eb::supervise
