// Fuzzes the parsers of smaps and smaps_rollup, and the choice of the mappings that meet a range. Whatever comes in: no
// negative figure, no empty mapping, an entry's own text parses to the same entry, and the chosen mappings meet the
// range.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "collectors/process_maps.h"

namespace {

using eb::collectors::SmapsEntry;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "smaps_fuzz: %s\n", what);
  std::abort();
}

bool same(const SmapsEntry& a, const SmapsEntry& b) {
  return a.start == b.start && a.end == b.end && a.file == b.file && a.inode == b.inode && a.device == b.device &&
         a.bytes == b.bytes && a.vm_flags == b.vm_flags && a.raw == b.raw;
}

void check_entry(const SmapsEntry& entry) {
  require(entry.end > entry.start, "a mapping without bytes");
  for (const auto& [key, bytes] : entry.bytes) require(bytes >= 0 && bytes % 1024 == 0, "bytes that no kB give");
  const auto again = eb::collectors::parse_smaps(entry.raw, nullptr);
  require(again.size() == 1 && same(again[0], entry), "an entry's own text gives another entry");
}

void check_range(std::string_view text, std::uint64_t address, std::uint64_t bytes) {
  const auto range = eb::collectors::select_range(eb::collectors::parse_numa_maps(text, nullptr),
                                                  eb::collectors::parse_smaps(text, nullptr), address, bytes);
  for (const SmapsEntry& entry : range.smaps) {
    require(entry.end > address && entry.start < address + bytes, "a mapping outside the range");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::int64_t skipped = -1;
  const auto entries = eb::collectors::parse_smaps(text, &skipped);
  require(skipped >= 0, "a negative count of lines");
  for (const SmapsEntry& entry : entries) check_entry(entry);
  for (const auto& [key, bytes] : eb::collectors::parse_rollup(text)) require(bytes >= 0, "a negative figure");
  if (!entries.empty()) check_range(text, entries.front().start, entries.front().end - entries.front().start);
  if (size >= 16) {
    std::uint64_t words[2];
    std::memcpy(words, data, sizeof(words));
    check_range(text, words[0] >> 1U, words[1] >> 1U);  // no range reaches beyond the address space
  }
  return 0;
}
