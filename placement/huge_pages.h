// Huge pages for a table: the pools that hugetlb pages come from, and whether the kernel makes transparent ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/plan/scenario.h"
#include "placement/policy.h"

namespace eb::placement {

// Pages of one size that tables will take, together from `nodes` (empty: from any node).
struct PoolDemand {
  std::vector<int> nodes;
  std::int64_t pages = 0;
};
// What backings of so many pages each take under a policy: bind: all of them from its nodes together; interleave,
// weighted: from each node its share, rounded up. The last demand is all of them, from anywhere.
[[nodiscard]] std::vector<PoolDemand> pool_demands(const EffectivePolicy& policy,
                                                   const std::vector<std::int64_t>& pages_of_backings);

// One size's pools on this machine.
struct HugePools {
  struct Node {
    std::int64_t total = 0;
    std::int64_t free = 0;
  };
  std::int64_t page_bytes = 0;
  std::map<int, Node> nodes;
  std::int64_t reserved = 0;    // free pages that mappings already have a claim to, of no node in particular
  std::int64_t overcommit = 0;  // pages that the kernel may still add to the pools when they are asked for
};
// `root` stands before /sys, for tests. Empty `nodes`: this kernel has no pool of that size.
[[nodiscard]] HugePools read_huge_pools(std::int64_t page_bytes, const std::string& root = "");

// Why the demands do not fit, with the figures, and the exit that follows: skipped where there is no pool at all on the
// nodes asked for, failure where one is too small. Empty text: they fit.
struct PoolShortage {
  Exit exit = Exit::ok;
  std::string text;
};
[[nodiscard]] PoolShortage pool_shortage(plan::Backing backing, const std::vector<PoolDemand>& demands,
                                         const HugePools& pools);

// Where the kernel can give shared memory transparent huge pages on demand (madvise): a memfd, where
// transparent_hugepage/shmem_enabled lets it, or a file in /dev/shm, where that mount's option huge= does.
enum class ThpSource { none, memfd, dev_shm };
// "" where `backing` (shm-thp or anon-thp) can get huge pages here, else why not and what to change.
[[nodiscard]] std::string thp_obstacle(plan::Backing backing, const std::string& root = "");
[[nodiscard]] ThpSource shm_thp_source(const std::string& root = "");

}  // namespace eb::placement
