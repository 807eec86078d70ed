// NUMA policy of a mapping's shared object or of anonymous memory: what was asked, applied by mbind before any touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/plan/scenario.h"
#include "placement/topology.h"

namespace eb::placement {

// A policy against this machine: nodes checked, `interleave:all` spelled out. `consumer` never comes here: it is a bind
// to the node that plan::place_backings() found.
struct EffectivePolicy {
  plan::PolicyKind kind = plan::PolicyKind::none;
  std::vector<int> nodes;         // ascending
  std::vector<int> weights = {};  // weighted: of each node, above 0
  friend bool operator==(const EffectivePolicy&, const EffectivePolicy&) = default;
};

// Errors: Error(skipped) for a node this machine lacks ("bind:7: this machine has NUMA nodes 0"), Error(failure) for
// one the cpuset does not allow, Error(usage) for consumer (whose node the layout knows) and for preferred with several
// nodes.
[[nodiscard]] EffectivePolicy resolve(const plan::Policy& policy, const Topology& topology);

// The kernel or the container refuses to set a policy (mbind: EPERM, ENOSYS), whatever the nodes: none is set.
class PolicyRefused : public Error {
 public:
  using Error::Error;
};

// mbind on [address, address+bytes): for shared memory the policy becomes the object's. Nothing may have been touched:
// a page that lies elsewhere already is an error. The policy is read back at the first and the last page, of each
// segment where there are several. `none` and `stock` set nothing. weighted is bound segment by segment
// (weighted_segments), or is the kernel's own policy where kernel_holds_weights(). `unit`: the size of the mapping's
// pages; 0: the system's. Errors: Error(failure) that names the policy, the errno and, for EPERM, that this container
// refuses mbind; PolicyRefused where it is mbind that is refused.
void apply(const EffectivePolicy& policy, std::byte* address, std::size_t bytes, std::size_t unit = 0);

// A stretch of a mapping whose pages lie on one node.
struct Segment {
  int node = -1;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
// How `weighted` is laid out: the nodes in turn, as long as their weights, over and over, at most kMaxSegments
// stretches (the kernel counts each as a mapping). Each node's pages are within one page of its exact share. Every
// stretch costs as much as some pages' touch, so that they are kStretchBytes long on the average, unless there would be
// fewer than kMinRounds turns: small tables, too, are mixed finely enough for each head to have its share. Pure.
inline constexpr std::size_t kMaxSegments = 1024;
inline constexpr std::size_t kStretchBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMinRounds = 64;
[[nodiscard]] std::vector<Segment> weighted_segments(const EffectivePolicy& policy, std::size_t bytes,
                                                     std::size_t unit);
// True where the kernel has the policy weighted interleave (Linux 6.9) and holds these very weights for these nodes in
// /sys/kernel/mm/mempolicy/weighted_interleave. They are read, never written. `root` stands before the path, for tests.
[[nodiscard]] bool kernel_holds_weights(const EffectivePolicy& policy, const std::string& root = "");
// The stretches that apply() binds one by one: those of weighted, where it is not the kernel's policy; else none.
[[nodiscard]] std::vector<Segment> bound_segments(const EffectivePolicy& policy, std::size_t bytes, std::size_t unit);
// After a stretch was touched: its first and last page lie on its node. Errors: Error(failure) with the figures.
void check_segment(const Segment& segment, const std::byte* mapping, std::size_t unit);

// The policy that the kernel will use for the page at `address` (get_mempolicy): the object's, else the mapping's, else
// the task's. `default` is PolicyKind::none. Errors: Error(failure).
[[nodiscard]] EffectivePolicy read_back(const std::byte* address);

// Of the calling thread, in the same words: "default", "bind:0", "interleave:0,1", "preferred:1". Errors:
// Error(failure).
[[nodiscard]] std::string task_policy();

// "bind:0,1", "weighted:0=3,1=1"; "default" for none, "stock" for stock.
[[nodiscard]] std::string text(const EffectivePolicy& policy);
// "0-3,8" of a list of numbers, as numactl writes and reads them.
[[nodiscard]] std::string node_list(std::span<const int> nodes);

// Share of the pages each node should hold under the policy (index = node); empty where the policy promises nothing:
// none, stock, bind to several nodes (any split of them), and preferred (a wish).
[[nodiscard]] std::vector<double> requested_shares(const EffectivePolicy& policy, int node_count);

// Where observed pages (by node) break the policy's promise, one line each; empty: kept. bind: pages outside its nodes;
// interleave, weighted: a node's share off by more than `tolerance` and the remainder of `granule_pages` (how many of
// these pages the kernel places at once: 512 of 4 KiB in a transparent huge page). Where requested_shares() promises
// nothing, only bind is judged.
[[nodiscard]] std::vector<std::string> broken_promises(const EffectivePolicy& policy,
                                                       const std::map<int, std::int64_t>& node_pages, double tolerance,
                                                       std::int64_t granule_pages = 1);

}  // namespace eb::placement
