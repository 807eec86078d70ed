// Tables of several processes put together: who maps the same backing, where its pages lie, what strikes about it.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collectors/live_process.h"

namespace eb::collectors {

struct LiveMachine {
  std::map<int, std::vector<int>> node_cpus;
  std::string thp_anon;   // "always", "madvise", "never"; empty: not known
  std::string thp_shmem;  // of memory without a mount of its own (memfd)
};

struct LiveReader {
  std::size_t process = 0;  // index of the process, and of the mapping in it
  std::size_t mapping = 0;
};

// One backing.
struct LiveTable {
  MappingKind kind = MappingKind::shared;
  std::string file;
  std::string device;
  std::uint64_t inode = 0;
  std::vector<LiveReader> readers;
  LiveReader fullest = {};  // the one with most pages in its page table: it speaks for huge pages
  TablePages pages = {};    // its `readers` are indices of `readers` here
};
// Shared mappings of one (device, inode) are one table; all others, private ones of files too, are one each. Largest
// first.
[[nodiscard]] std::vector<LiveTable> group_tables(const std::vector<LiveProcess>& processes);

[[nodiscard]] const LiveMapping& mapping_of(const std::vector<LiveProcess>& processes, const LiveReader& reader);

// Nodes that a list of CPUs ("0-3,8") belongs to, ascending.
[[nodiscard]] std::vector<int> nodes_of_cpus(const std::string& cpus, const LiveMachine& machine);

// NUMA nodes of the devices that a process holds, ascending; empty where it holds none or no node is stated. Where it
// only has several device files open, it is not known which of them it computes on: all their nodes.
[[nodiscard]] std::vector<int> device_nodes(const LiveProcess& process);

// Share of the table's counted pages on the node of the reader's device; empty without a device, a node or pages.
[[nodiscard]] std::optional<double> local_share(const LiveProcess& process, const TablePages& pages);

// By whom huge pages were asked for: "madvise", "mount option huge=always", "shmem_enabled always",
// "transparent_hugepage always"; empty: by nobody.
[[nodiscard]] std::string huge_pages_asked(const LiveMapping& mapping, const LiveMachine& machine);

struct LiveFinding {
  std::string code;  // docs/observe.md
  int table = -1;    // index; -1: of processes alone
  std::vector<int> pids;
  std::string text;
};
[[nodiscard]] std::vector<LiveFinding> find_in(const std::vector<LiveProcess>& processes,
                                               const std::vector<LiveTable>& tables, const LiveMachine& machine);

}  // namespace eb::collectors
