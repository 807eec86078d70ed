// Which NUMA node each page of a mapping lies on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace eb::collectors {

struct PageNodes {
  std::map<int, std::int64_t> node_pages;   // pages by node, base-page units of 4 KiB (the system's page size)
  std::map<int, std::int64_t> unqueryable;  // by errno (EFAULT, EACCES, ...), ENOENT apart below
  std::int64_t not_mapped = 0;              // not present in this process: a class of its own
  std::int64_t queried = 0;
  std::int64_t total = 0;
  bool sampled = false;
  // Standard error of a node's share where sampled: sqrt(p(1-p)/n), the largest over nodes.
  double share_error = 0;
};

// move_pages with no target on every page, or on a systematic sample of about `max_pages` (0 = all). Errors: those of
// the call itself (EPERM in a container) as Error(failure).
[[nodiscard]] PageNodes page_nodes(const std::byte* address, std::size_t bytes, std::int64_t max_pages);

}  // namespace eb::collectors
