// storage.copies per-numa-node: whether this machine can have copies, and whether they hold the same bytes. Pure.
#pragma once

#include <span>
#include <string>

#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "placement/topology.h"

namespace eb::supervise {

// Copies need two nodes with memory. Errors: Error(skipped) where the machine has one, Error(failure) where cpuset.mems
// leaves one.
void check_copies(const plan::Scenario& scenario, const placement::Topology& topology);

struct CopyDigest {
  int backing = 0;
  std::string sha256;  // of the whole backing after the load
};
// Errors: Error(bad_data) that names two backings of one shard whose content differs, their nodes and leaders.
void require_equal_copies(const plan::RunLayout& layout, std::span<const CopyDigest> digests);

}  // namespace eb::supervise
