// The memory limits of this process's control group and its ancestors, cgroup v2 and v1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace eb::placement {

struct CgroupMemory {
  std::string folder;                    // as the process sees it, e.g. /sys/fs/cgroup/kubepods/pod1
  std::int64_t limit_bytes = 0;          // memory.max, or memory.limit_in_bytes
  std::int64_t usage_bytes = 0;          // memory.current, or memory.usage_in_bytes
  std::int64_t inactive_file_bytes = 0;  // page cache that the kernel drops before it refuses memory; 0: not stated

  // What can still be allocated: limit - (usage - inactive_file), not below 0. Anonymous and shared memory, and the
  // active page cache, count as used; memory.high (slows down, does not refuse) and swap do not count.
  [[nodiscard]] std::int64_t free_bytes() const noexcept;
};

// Every group with a limit, from the process's own up to the root of what it can see. `root` stands before every path.
[[nodiscard]] std::vector<CgroupMemory> cgroup_memory_limits(const std::string& root = "");
// The one with the least free_bytes(); none: no limit, or none that can be read.
[[nodiscard]] std::optional<CgroupMemory> tightest_cgroup_memory(const std::string& root = "");

}  // namespace eb::placement
