// The memory a table lies in. Shared backings have a descriptor that is passed to the readers; nothing has a name,
// except for policy stock, so that a kill leaves nothing behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/base/mapping.h"
#include "harness/base/unique_fd.h"
#include "harness/plan/scenario.h"

namespace eb::placement {

// shm: O_TMPFILE in /dev/shm; memfd: memfd_create. Sized by ftruncate, nothing allocated (never fallocated before the
// policy is set). Errors: Error(failure).
[[nodiscard]] UniqueFd create_backing(plan::Backing backing, std::size_t bytes);

// stock: a named file, created exclusively. The name holds the pid and start time of its owner.
struct NamedFile {
  UniqueFd fd;
  std::string path;
};
[[nodiscard]] NamedFile create_stock_file(std::size_t bytes);
[[nodiscard]] UniqueFd open_stock_file(const std::string& path);
void unlink_stock_file(const std::string& path) noexcept;
// Removes names in /dev/shm whose owner is gone; returns how many.
int remove_stale_stock_files();

// Allocated bytes of a shared backing (st_blocks * 512) and its identity.
struct BackingState {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t allocated_bytes = 0;
};
[[nodiscard]] BackingState backing_state(int fd);

// Refuses before allocating, with the figures: /dev/shm free space, the cgroup's and the machine's free memory.
// Errors: Error(failure).
struct MemoryNeed {
  std::int64_t shared_bytes = 0;    // in /dev/shm or memfd
  std::int64_t shm_file_bytes = 0;  // of these, in the /dev/shm mount
  std::int64_t private_bytes = 0;
};
struct MemoryLimits {
  std::int64_t shm_free_bytes = -1;     // -1: unknown
  std::int64_t cgroup_free_bytes = -1;  // the tightest of the cgroup's ancestors
  std::int64_t available_bytes = -1;    // MemAvailable
};
[[nodiscard]] MemoryLimits read_memory_limits();
// One line a limit that `need` breaks; empty: it fits.
[[nodiscard]] std::vector<std::string> missing_memory(const MemoryNeed& need, const MemoryLimits& limits);

}  // namespace eb::placement
