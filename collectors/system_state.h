// State recorded before and after a run: node memory, kernel settings, limits, a rank's CPU mask and policies.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace eb::collectors {

// A value, or why there is none. Never 0 for "not measured".
struct Reading {
  std::optional<std::string> value;
  std::string reason;  // set where value is not
};

struct NodeMemory {
  int node = 0;
  std::map<std::string, std::int64_t> bytes;  // MemTotal, MemFree, FilePages, Shmem, HugePages_Total (count), ...
  std::map<std::int64_t, std::int64_t> free_huge_pages;  // by page size in bytes; empty where the kernel has no pools
};
[[nodiscard]] std::vector<NodeMemory> read_node_memory(const std::string& sysfs = "/sys/devices/system/node");

// numa_balancing, THP anon and shmem, zone_reclaim, KSM, governor, cgroup cpuset.mems and memory limit, /dev/shm mount
// and size, memlock, kernel, IOMMU mode where readable, IPC, mount and cgroup namespaces. Keys: docs/collectors.md.
[[nodiscard]] std::map<std::string, Reading> read_os_state();

// Of the calling thread's process.
struct RankState {
  std::vector<int> cpus;                             // affinity
  std::string mems_allowed;                          // /proc/self/status
  std::string task_policy;                           // get_mempolicy: "default", "bind:0", ...; empty: see next
  std::string task_policy_reason;                    // why task_policy is not known
  std::map<std::string, std::int64_t> rollup_bytes;  // smaps_rollup; empty where the kernel has none
};
[[nodiscard]] RankState read_rank_state();

// The tightest memory limit of this process's cgroup and its ancestors (v2 and v1): limit - usage, page cache that the
// kernel would drop first not counted as used; -1 without one.
[[nodiscard]] std::int64_t cgroup_free_bytes();

}  // namespace eb::collectors
