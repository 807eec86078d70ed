// What a re-roll will take of the machine's memory, from the ledger, before anything is allocated. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/supervise/binding.h"
#include "placement/backing.h"
#include "placement/topology.h"

namespace eb::supervise {

struct MemoryEstimate {
  std::int64_t table_bytes = 0;    // all backings
  std::int64_t arena_bytes = 0;    // messages between CPU ranks
  std::int64_t weight_bytes = 0;   // all ranks: wkv and backbone, float32 on the CPU
  std::int64_t buffer_bytes = 0;   // all ranks: staging, gathered rows, kv, hidden states
  std::int64_t process_bytes = 0;  // all ranks: the process itself
  std::int64_t record_bytes = 0;   // events and token contexts of the longest slot, in ranks and supervisor
  std::int64_t pool_bytes = 0;     // of the tables, from pools of huge pages: no part of `need`
  placement::MemoryNeed need;

  [[nodiscard]] std::int64_t total_bytes() const noexcept {
    return need.shared_bytes + need.private_bytes + pool_bytes;
  }
  // "tables 188.8 GiB, weights 1.0 GiB, ...".
  [[nodiscard]] std::string text() const;
};

// What of the start decides how much a node must have.
struct Terms {
  // An interleave whose nodes are too full for their shares is no obstacle: the kernel puts the pages on the others.
  bool allow_degraded = false;
  std::vector<RankBinding> bindings = {};  // of each rank; empty: no rank is bound
};
[[nodiscard]] MemoryEstimate estimate_memory(const plan::Scenario& scenario, const plan::RunLayout& layout,
                                             const engram::Geometry& geometry, std::int64_t arena_bytes,
                                             const Terms& terms = {});

struct TablesOf {
  const plan::Scenario* scenario = nullptr;
  plan::RunLayout layout;
};

// Whether the huge pages that the tables ask for can be had: the pools of hugetlb by node and policy, or the kernel's
// switches for transparent ones. Errors: Error(skipped) where there are none, Error(failure) where a pool is too small,
// with the figures.
void require_huge_pages(const plan::Scenario& scenario, const plan::RunLayout& layout,
                        const placement::Topology& topology);

// The same for the tables of several scenarios at once: pages of one size are asked of its pools together.
void require_huge_pages_together(const std::vector<TablesOf>& all, const placement::Topology& topology);

// Error(failure) with need, limits and figures where it does not fit.
void require_memory(const MemoryEstimate& estimate, const placement::MemoryLimits& limits);

// experiment.coresident: the tables and ranks of all `arms` at once. Error(failure) with what each arm takes where that
// does not fit.
struct ArmMemory {
  std::string arm;
  MemoryEstimate estimate;
};
void require_memory_together(const std::vector<ArmMemory>& arms, const placement::MemoryLimits& limits);

}  // namespace eb::supervise
