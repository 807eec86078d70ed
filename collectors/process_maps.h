// /proc/PID/numa_maps, smaps and smaps_rollup: parsers (pure, fuzzed) and readers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace eb::collectors {

struct NumaMapsEntry {
  std::uint64_t address = 0;
  // "default", "bind:0", "preferred:1", "interleave:0-1", "local", ... in the scenario file's words: the kernel's
  // "prefer" is "preferred", its "prefer (many)" "preferred-many", its "weighted interleave" "weighted-interleave".
  std::string policy;
  std::string file;                        // unescaped, "(deleted)" kept; empty for anonymous
  std::map<int, std::int64_t> node_pages;  // in units of kernel_page_bytes
  std::int64_t kernel_page_bytes = 4096;
  bool huge = false;
  std::string raw;  // anon, dirty, mapped, mapmax, swapcache, active and writeback stay here alone
};
// Lines that are not of the form are skipped and counted in `skipped` (may be null).
[[nodiscard]] std::vector<NumaMapsEntry> parse_numa_maps(std::string_view text, std::int64_t* skipped);

// The fields of a mapping in smaps by name, in the kernel's order. There are some 25 for each of thousands of mappings:
// one block of memory holds them, where a tree would take most of the parser's time.
class SmapsFields {
 public:
  using Field = std::pair<std::string, std::int64_t>;
  using Iterator = std::vector<Field>::const_iterator;

  void assign(std::string_view name, std::int64_t value);
  [[nodiscard]] Iterator find(std::string_view name) const noexcept;
  [[nodiscard]] bool contains(std::string_view name) const noexcept { return find(name) != end(); }
  [[nodiscard]] std::int64_t at(std::string_view name) const;  // std::out_of_range where it is not there
  [[nodiscard]] Iterator begin() const noexcept { return fields_.begin(); }
  [[nodiscard]] Iterator end() const noexcept { return fields_.end(); }
  friend bool operator==(const SmapsFields&, const SmapsFields&) = default;

 private:
  std::vector<Field> fields_;
};

struct SmapsEntry {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  std::string permissions;   // "rw-s": shared, "rw-p": private
  std::uint64_t offset = 0;  // in the file
  std::string file;          // as above; "[heap]", "[stack]", "[anon:name]"; empty for anonymous
  std::uint64_t inode = 0;
  std::string device;  // "00:1a"
  SmapsFields bytes;   // Rss, Pss, Shared_Clean, ..., KernelPageSize: bytes
  std::string vm_flags;
  std::string raw;
};
// Fields without "kB" (THPeligible, ProtectionKey) stay in `raw` alone. Lines that are of no form, or that stand before
// the first mapping's head, are skipped and counted in `skipped` (may be null). /proc/PID/maps, which is the heads
// alone, parses too.
[[nodiscard]] std::vector<SmapsEntry> parse_smaps(std::string_view text, std::int64_t* skipped);
// Keys of smaps_rollup in bytes.
[[nodiscard]] std::map<std::string, std::int64_t> parse_rollup(std::string_view text);

// What the kernel says about [address, address + bytes) of a process. The kernel may hold the range as several mappings
// (a policy on a part splits it), or as part of a larger one (anonymous neighbours merge).
struct RangeMaps {
  std::vector<NumaMapsEntry> numa;  // ascending; empty with `numa_reason` where there is no numa_maps
  std::vector<SmapsEntry> smaps;    // ascending; empty with `smaps_reason`
  std::string numa_reason;
  std::string smaps_reason;
  // True where the mappings reach beyond the range: their figures then count other pages too.
  bool covers_more = false;
  // True where a part of the range is not mapped.
  bool has_holes = false;
};
// Pure: picks the mappings that meet the range. numa_maps has start addresses only, so its entries are matched to those
// of smaps; without smaps an entry counts if it starts inside, or is the last to start before the range.
[[nodiscard]] RangeMaps select_range(std::vector<NumaMapsEntry> numa, std::vector<SmapsEntry> smaps,
                                     std::uint64_t address, std::uint64_t bytes);
// Reads `proc`/numa_maps and `proc`/smaps ("/proc/self", "/proc/4711"). Never throws for a file that cannot be read:
// the reason is in the result.
[[nodiscard]] RangeMaps read_range(std::uint64_t address, std::uint64_t bytes, const std::string& proc = "/proc/self");

}  // namespace eb::collectors
