// /proc/PID/numa_maps, smaps and smaps_rollup: parsers (pure, fuzzed) and readers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eb::collectors {

struct NumaMapsEntry {
  std::uint64_t address = 0;
  std::string policy;                      // "default", "bind:0", "interleave:0-1", ...
  std::string file;                        // unescaped, empty for anonymous
  std::map<int, std::int64_t> node_pages;  // in units of kernel_page_bytes
  std::int64_t kernel_page_bytes = 4096;
  std::map<std::string, std::int64_t> counts;  // anon, dirty, mapped, mapmax, swapcache, active, writeback
  bool huge = false;
  std::string raw;
};
// Lines that are not of the form are skipped and counted in `skipped`.
[[nodiscard]] std::vector<NumaMapsEntry> parse_numa_maps(std::string_view text, std::int64_t* skipped);

struct SmapsEntry {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  std::string file;
  std::uint64_t inode = 0;
  std::string device;                         // "00:1a"
  std::map<std::string, std::int64_t> bytes;  // Rss, Pss, Shared_Clean, ..., KernelPageSize: bytes
  std::string vm_flags;
  std::string raw;
};
[[nodiscard]] std::vector<SmapsEntry> parse_smaps(std::string_view text, std::int64_t* skipped);
// Keys of smaps_rollup in bytes.
[[nodiscard]] std::map<std::string, std::int64_t> parse_rollup(std::string_view text);

}  // namespace eb::collectors
