// The memory a table lies in. Shared backings have a descriptor that is passed to the readers; nothing has a name,
// except for policy stock, so that a kill leaves nothing behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "harness/base/mapping.h"
#include "harness/base/unique_fd.h"
#include "harness/plan/scenario.h"

namespace eb::placement {

// shm: O_TMPFILE in /dev/shm; memfd: memfd_create; hugetlb-2m, hugetlb-1g: memfd_create over the pool of that page
// size; shm-thp: as memfd or shm, whichever may have huge pages here (huge_pages.h). Sized by ftruncate, nothing
// allocated (never fallocated before the policy is set). `bytes` of a hugetlb backing: whole huge pages. Errors:
// Error(failure) of the system; Error(usage) for a backing that has no descriptor (anon, anon-thp: map it with
// map_private) or that this version does not build.
[[nodiscard]] UniqueFd create_backing(plan::Backing backing, std::size_t bytes);

// A reader's mapping of a shared backing. shm-thp: at a multiple of 2 MiB, and MADV_HUGEPAGE is set on it. hugetlb: the
// kernel reserves the pages in the pool now, and refuses (ENOMEM) where it has too few. Errors: Error(failure).
[[nodiscard]] Mapping map_backing(plan::Backing backing, int fd, std::size_t bytes);

// anon, anon-thp: private memory of this process, nothing faulted. Between two guard pages, so that the kernel never
// merges it with a neighbour: numa_maps and smaps then speak of this mapping alone. anon-thp as shm-thp above; anon has
// small pages whatever the system's setting. Errors:
// Error(failure).
[[nodiscard]] Mapping map_private(std::size_t bytes, plan::Backing backing = plan::Backing::anon);

inline constexpr const char* kShmFolder = "/dev/shm";

// stock: a named file, created exclusively. The name holds the pid and start time of its owner:
// engram_bench_<pid>_<start time in clock ticks since boot>_<n>. Every holder of a descriptor from here has a shared
// flock on the file, which tells "in use" from "left behind" where pids cannot: in a container with its own pid
// namespace that shares /dev/shm.
struct NamedFile {
  UniqueFd fd;
  std::string path;
};
// Errors: Error(failure).
[[nodiscard]] NamedFile create_stock_file(std::size_t bytes, const std::string& folder = kShmFolder);
// Errors: Error(failure).
[[nodiscard]] UniqueFd open_stock_file(const std::string& path);
void unlink_stock_file(const std::string& path) noexcept;
// Removes names whose owner (pid and start time) is gone, that belong to this user and that nobody holds; returns how
// many. Names of other forms are left alone.
int remove_stale_stock_files(const std::string& folder = kShmFolder);

// Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat); -1 if there is no such process.
[[nodiscard]] std::int64_t process_start_time(int pid);

// Allocated bytes of a shared backing (st_blocks * 512) and its identity. Errors: Error(failure).
struct BackingState {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t allocated_bytes = 0;
};
[[nodiscard]] BackingState backing_state(int fd);

// Refuses before allocating, with the figures: /dev/shm free space, the cgroup's and the machine's free memory.
struct MemoryNeed {
  std::int64_t shared_bytes = 0;    // in /dev/shm or memfd
  std::int64_t shm_file_bytes = 0;  // of these, in the /dev/shm mount
  std::int64_t private_bytes = 0;
  std::vector<int> bind_nodes;  // the only nodes that bind_bytes may lie on; empty: any
  std::int64_t bind_bytes = 0;  // of the tables, shared or private
  // Of a table whose every page has a node: what must lie on each, none of it elsewhere.
  std::map<int, std::int64_t> node_bytes = {};
};
struct MemoryLimits {
  std::int64_t shm_free_bytes = -1;     // -1: unknown
  std::int64_t cgroup_free_bytes = -1;  // the tightest of the cgroup's ancestors
  std::int64_t available_bytes = -1;    // MemAvailable
  // What a node could still give: MemFree + Inactive(file) + SReclaimable, less what the kernel keeps for itself (the
  // zones' min watermarks). Empty where the nodes' MemTotal do not add up to the machine's: a virtual machine that is
  // given its memory as it goes states too little per node.
  std::map<int, std::int64_t> node_free_bytes;
};
// `root` stands before every path (/proc, /sys, /dev/shm), for tests. Reads only.
[[nodiscard]] MemoryLimits read_memory_limits(const std::string& root = "");
// One line a limit that `need` breaks; empty: it fits. Limits that are unknown break nothing.
[[nodiscard]] std::vector<std::string> missing_memory(const MemoryNeed& need, const MemoryLimits& limits);

// "1.5 GiB", "512 B": for people.
[[nodiscard]] std::string human_bytes(std::int64_t bytes);

}  // namespace eb::placement
