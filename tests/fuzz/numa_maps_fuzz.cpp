// Fuzzes the parser of numa_maps. Whatever comes in, every line is either an entry, skipped or empty; an entry's
// figures are not negative, and its own line parses to the same entry again.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "collectors/process_maps.h"

namespace {

using eb::collectors::NumaMapsEntry;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "numa_maps_fuzz: %s\n", what);
  std::abort();
}

std::int64_t lines_with_text(std::string_view text) {
  std::int64_t lines = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end != 0) ++lines;
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

bool same(const NumaMapsEntry& a, const NumaMapsEntry& b) {
  return a.address == b.address && a.policy == b.policy && a.file == b.file && a.node_pages == b.node_pages &&
         a.kernel_page_bytes == b.kernel_page_bytes && a.huge == b.huge && a.raw == b.raw;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::int64_t skipped = -1;
  const auto entries = eb::collectors::parse_numa_maps(text, &skipped);
  require(static_cast<std::int64_t>(entries.size()) + skipped == lines_with_text(text), "a line was lost");
  for (const NumaMapsEntry& entry : entries) {
    require(entry.kernel_page_bytes > 0, "a page size that is not positive");
    for (const auto& [node, pages] : entry.node_pages) require(node >= 0 && pages >= 0, "a negative count of pages");
    const auto again = eb::collectors::parse_numa_maps(entry.raw, nullptr);
    require(again.size() == 1 && same(again[0], entry), "an entry's own line gives another entry");
  }
  return 0;
}
