// Which NUMA node each page of a mapping lies on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace eb::collectors {

// 4 GiB of 4 KiB pages: asked page by page up to here, sampled above.
inline constexpr std::int64_t kDefaultMaxPages = std::int64_t{1} << 20;

struct PageNodes {
  std::map<int, std::int64_t> node_pages;  // pages by node, base-page units of 4 KiB (the system's page size)
  // By errno (EFAULT, EACCES, ...), ENOENT apart below. EFAULT: not a mapping of this process, or the kernel's zero
  // page (private memory that was only read).
  std::map<int, std::int64_t> unqueryable;
  std::int64_t not_mapped = 0;  // not present in this process: a class of its own
  std::int64_t queried = 0;
  std::int64_t total = 0;
  bool sampled = false;
  // Standard error of a node's share where sampled: sqrt(p(1-p)/n), the largest over nodes. n: pages whose node is
  // known.
  double share_error = 0;
};

// move_pages with no target on every page of [address, address + bytes) (the page of `address` to that of the last
// byte), or, where there are more than `max_pages` (0 = all), on about so many: one page at random out of each of
// equally long stretches. (A fixed step would meet the same node of an interleaved table again and again.) The draw is
// the same each time for a table of one size. Asking neither faults nor moves pages. Errors: those of the call itself
// (EPERM in a container) as Error(failure).
[[nodiscard]] PageNodes page_nodes(const std::byte* address, std::size_t bytes, std::int64_t max_pages);

// The same of memory in huge pages of `unit` bytes each (hugetlb): one question a huge page, counted as all of its base
// pages in the range.
[[nodiscard]] PageNodes huge_page_nodes(const std::byte* address, std::size_t bytes, std::size_t unit);

// What move_pages says of the page of each address: its node, or -errno (-ENOENT: not in this process's page table).
// Errors: as above.
[[nodiscard]] std::vector<int> page_status(std::span<const std::byte* const> addresses);

// Pure: counts move_pages' status words (node, or -errno) into `result`.
void count_status(std::span<const int> status, PageNodes& result);

// Pure: sqrt(p(1-p)/n) of the node with the largest one; 0 where no page has a node.
[[nodiscard]] double largest_share_error(const std::map<int, std::int64_t>& node_pages);

// "EFAULT"; the number as text where the name is not known.
[[nodiscard]] std::string errno_name(int number);

}  // namespace eb::collectors
