// NUMA policy of a mapping's shared object or of anonymous memory: what was asked, applied by mbind before any touch.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "harness/plan/scenario.h"
#include "placement/topology.h"

namespace eb::placement {

// A policy against this machine: nodes checked, `interleave:all` spelled out.
struct EffectivePolicy {
  plan::PolicyKind kind = plan::PolicyKind::none;
  std::vector<int> nodes;
};

// Errors: Error(skipped) for a node this machine lacks ("bind:7: this machine has NUMA nodes 0"), Error(failure) for
// one the cpuset does not allow.
[[nodiscard]] EffectivePolicy resolve(const plan::Policy& policy, const Topology& topology);

// mbind on [address, address+bytes): for shared memory the policy becomes the object's. Nothing may have been touched.
// Errors: Error(failure) that names the policy, the errno and, for EPERM, that this container refuses mbind.
void apply(const EffectivePolicy& policy, std::byte* address, std::size_t bytes);

// Share of the pages each node should hold under the policy (index = node); empty where the policy promises nothing.
[[nodiscard]] std::vector<double> requested_shares(const EffectivePolicy& policy, int node_count);

}  // namespace eb::placement
