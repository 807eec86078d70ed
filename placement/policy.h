// NUMA policy of a mapping's shared object or of anonymous memory: what was asked, applied by mbind before any touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "harness/plan/scenario.h"
#include "placement/topology.h"

namespace eb::placement {

// A policy against this machine: nodes checked, `interleave:all` spelled out.
struct EffectivePolicy {
  plan::PolicyKind kind = plan::PolicyKind::none;
  std::vector<int> nodes;  // ascending
  friend bool operator==(const EffectivePolicy&, const EffectivePolicy&) = default;
};

// Errors: Error(skipped) for a node this machine lacks ("bind:7: this machine has NUMA nodes 0"), Error(failure) for
// one the cpuset does not allow, Error(usage) for a kind that this version does not build (weighted, consumer) and for
// preferred with several nodes.
[[nodiscard]] EffectivePolicy resolve(const plan::Policy& policy, const Topology& topology);

// mbind on [address, address+bytes): for shared memory the policy becomes the object's. Nothing may have been touched:
// a page that lies elsewhere already is an error. The policy is read back at the first and the last page. `none` and
// `stock` set nothing. Errors: Error(failure) that names the policy, the errno and, for EPERM, that this container
// refuses mbind.
void apply(const EffectivePolicy& policy, std::byte* address, std::size_t bytes);

// The policy that the kernel will use for the page at `address` (get_mempolicy): the object's, else the mapping's, else
// the task's. `default` is PolicyKind::none. Errors: Error(failure).
[[nodiscard]] EffectivePolicy read_back(const std::byte* address);

// Of the calling thread, in the same words: "default", "bind:0", "interleave:0,1", "preferred:1". Errors:
// Error(failure).
[[nodiscard]] std::string task_policy();

// "bind:0,1"; "default" for none, "stock" for stock.
[[nodiscard]] std::string text(const EffectivePolicy& policy);
// "0-3,8" of a list of numbers, as numactl writes and reads them.
[[nodiscard]] std::string node_list(std::span<const int> nodes);

// Share of the pages each node should hold under the policy (index = node); empty where the policy promises nothing:
// none, stock, bind to several nodes (any split of them), and preferred (a wish).
[[nodiscard]] std::vector<double> requested_shares(const EffectivePolicy& policy, int node_count);

// Where observed pages (by node) break the policy's promise, one line each; empty: kept. bind: pages outside its nodes;
// interleave: a node's share off by more than `tolerance` and the remainder of `granule_pages` (how many of these pages
// the kernel places at once: 512 of 4 KiB in a transparent huge page). Where requested_shares() promises nothing, only
// bind is judged.
[[nodiscard]] std::vector<std::string> broken_promises(const EffectivePolicy& policy,
                                                       const std::map<int, std::int64_t>& node_pages, double tolerance,
                                                       std::int64_t granule_pages = 1);

}  // namespace eb::placement
