#include "harness/supervise/copies.h"

#include <map>
#include <vector>

#include "harness/base/error.h"
#include "placement/policy.h"

namespace eb::supervise {

void check_copies(const plan::Scenario& scenario, const placement::Topology& topology) {
  if (scenario.storage.copies != plan::Copies::per_numa_node) return;
  std::vector<int> with_memory;
  std::vector<int> allowed;
  for (const placement::NumaNode& node : topology.nodes) {
    if (node.bytes <= 0) continue;
    with_memory.push_back(node.id);
    if (node.allowed) allowed.push_back(node.id);
  }
  if (with_memory.size() < 2) {
    fail(Exit::skipped,
         "storage.copies per-numa-node: this machine has one NUMA node with memory ({}), and a copy there is all that "
         "there could be; use storage.copies one, or run on a machine with several nodes",
         placement::node_list(with_memory));
  }
  if (allowed.size() < 2) {
    fail(
        Exit::failure,
        "storage.copies per-numa-node: this process may use the memory of NUMA node {} alone, of {}; widen cpuset.mems "
        "of the container or slice",
        placement::node_list(allowed), placement::node_list(with_memory));
  }
}

void require_equal_copies(const plan::RunLayout& layout, std::span<const CopyDigest> digests) {
  const auto place_of = [&](const CopyDigest& digest) -> const plan::BackingPlace& {
    return layout.backings.at(static_cast<std::size_t>(digest.backing));
  };
  std::map<int, const CopyDigest*> first;  // by shard: the tables of a shard are the same in every group too
  for (const CopyDigest& digest : digests) {
    const plan::BackingPlace& backing = place_of(digest);
    const int shard = layout.ranks.at(static_cast<std::size_t>(backing.leader)).shard.index;
    const CopyDigest& other = *first.try_emplace(shard, &digest).first->second;
    if (other.sha256 == digest.sha256) continue;
    fail(
        Exit::bad_data,
        "copies of shard {} differ after the load: backing {} on NUMA node {} (leader rank {}) has SHA-256 {}, backing "
        "{} on node {} (leader rank {}) has {}; one of the leaders loaded wrong bytes",
        shard, other.backing, place_of(other).node, place_of(other).leader, other.sha256, digest.backing, backing.node,
        backing.leader, digest.sha256);
  }
}

}  // namespace eb::supervise
