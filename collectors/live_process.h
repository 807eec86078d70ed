// One running process of any program, as /proc shows it: which mappings may be tables, what their pages are, where it
// may run, which devices it holds. Reads only; needs no more rights than reading /proc/PID needs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "collectors/system_state.h"
#include "collectors/table_pages.h"

namespace eb::collectors {

// Which mappings are taken for tables. Always: files /dev/shm/vllm_engram_* and /dev/shm/engram_bench_* (deleted ones
// too); and from `driver_bytes` on what NVIDIA's driver keeps in host memory: all mappings of /dev/nvidiactl together
// (cuMem on a NUMA node), and in a process that has these each one of "/dev/zero (deleted)" (cudaHostAlloc, as driver
// 580 does it: shared memory without a name, as any program may have).
struct TableFilter {
  std::optional<std::regex> match;        // others whose name it is found in
  std::optional<std::int64_t> min_bytes;  // others of that size; with `match`, both must hold
  // Below that are registers, queues and pools of the driver's own: 70 MiB in a process with a context on one H200.
  std::int64_t driver_bytes = std::int64_t{256} << 20;
  std::string match_text;  // of `match`, for messages
};

// shared: pages belong to a file or object, whoever maps it (device and inode say which). file: private mapping of a
// file, whose pages are this process's own once written. anonymous: memory of this process alone. driver: the file of a
// device driver; its inode is the device's, so it does not tell one allocation from another.
enum class MappingKind { shared, file, anonymous, driver };
[[nodiscard]] const char* name(MappingKind kind) noexcept;

// All that a process maps of one backing, added up; several pieces where a policy or an offset splits it.
struct LiveMapping {
  MappingKind kind = MappingKind::shared;
  std::string file;    // "/dev/shm/x (deleted)"; empty: anonymous
  std::string device;  // "00:1a"
  std::uint64_t inode = 0;
  std::uint64_t address = 0;  // of the first piece
  std::int64_t bytes = 0;     // mapped
  int pieces = 0;
  std::vector<LivePiece> parts;            // each part of the backing once
  bool overlaps = false;                   // a part is mapped twice
  std::map<int, std::int64_t> node_bytes;  // of the parts, from numa_maps
  std::int64_t page_bytes = 0;             // the smallest kernelpagesize; 0: numa_maps could not be read
  std::vector<std::string> policies;       // from numa_maps, each once
  std::int64_t rss_bytes = 0;              // from smaps; pages of huge page pools are not in it
  std::optional<std::int64_t> pss_bytes;   // empty where the kernel gives none
  std::int64_t pool_bytes = 0;             // pages of huge page pools (hugetlb)
  std::int64_t huge_mapped_bytes = 0;      // mapped by huge entries of the page table: THP
  bool huge_asked = false;                 // madvise(MADV_HUGEPAGE): VmFlags hg
  bool huge_refused = false;               // madvise(MADV_NOHUGEPAGE): VmFlags nh
  std::string mount_huge;                  // "always": option huge= of the mount that the file lies on
  [[nodiscard]] std::int64_t present_bytes() const noexcept;
};

struct DeviceHold {
  int minor = -1;      // N of /dev/nvidiaN; -1: not known
  std::string bus_id;  // "0000:18:00.0"; empty: not known
  int node = -1;       // -1: the system states none
  std::string source;  // "nvml": it computes there. "maps", "fd": it has the device file mapped, or open
};

enum class LookCode { tables, no_tables, gone, not_permitted, no_memory };
[[nodiscard]] const char* name(LookCode code) noexcept;

struct LiveProcess {
  int pid = 0;
  LookCode code = LookCode::gone;
  std::string text;  // what is the matter and what to do, where `code` is not `tables`
  std::string program;
  std::optional<std::int64_t> user_id;
  std::optional<std::int64_t> threads;
  std::string cpus;          // "0-3"
  std::string mems_allowed;  // "0-1"
  Reading task_policy;       // of the main thread
  std::vector<DeviceHold> devices;
  std::vector<LiveMapping> mappings;
  std::optional<std::int64_t> rss_bytes;  // of the whole process
  std::optional<std::int64_t> pss_bytes;
  std::int64_t numa_maps_ns = 0;  // what reading took: the kernel walks the page tables
  std::int64_t smaps_ns = 0;
  std::vector<std::pair<std::string, std::string>> unread;  // file -> why
};

// Bus ids by pid, of processes that compute on a device (from NVML); may be empty.
using DeviceUsers = std::map<int, std::vector<std::string>>;

// `root` stands before /proc and /sys, for tests. Never throws for a process: `code` and `text` say what went wrong.
[[nodiscard]] LiveProcess look_at_process(int pid, const TableFilter& filter, const DeviceUsers& users,
                                          const std::string& root = "");

// NVML's list of compute processes as bus ids by pid; empty where there is no NVML.
[[nodiscard]] DeviceUsers nvml_device_users(const std::string& nvml_state_json);

}  // namespace eb::collectors
