#include "collectors/page_map.h"

#include <numaif.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::collectors {

namespace {

// Pages a call: arrays that stay in the L2 cache (16384 * 12 B).
constexpr std::size_t kBatch = 16384;

std::uint64_t mix(std::uint64_t x) {  // the finaliser of splitmix64
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

// Which pages are asked: sample i of `count` lies in the i-th of `count` equally long stretches of `total` pages.
struct Sample {
  std::uint64_t total = 0;
  std::uint64_t count = 0;

  [[nodiscard]] std::uint64_t page(std::uint64_t i) const {
    if (count == total) return i;
    const auto edge = [&](std::uint64_t k) {
      return static_cast<std::uint64_t>(static_cast<unsigned __int128>(total) * k / count);
    };
    const std::uint64_t start = edge(i);
    return start + mix(i) % (edge(i + 1) - start);
  }
};

void query(std::span<void*> pages, std::span<int> status) {
  if (::move_pages(0, pages.size(), pages.data(), nullptr, status.data(), 0) < 0) {
    const int number = errno;
    const char* remedy = number == EPERM
                             ? "; this container refuses the call (seccomp): start it with --cap-add SYS_NICE or a "
                               "seccomp profile that allows move_pages"
                         : number == ENOSYS ? "; this kernel has no page migration (CONFIG_MIGRATION, CONFIG_NUMA)"
                                            : "";
    fail(Exit::failure, "move_pages of {} pages (query only): {}{}", pages.size(), std::strerror(number), remedy);
  }
}

void ask(std::vector<void*>& pages, std::vector<int>& status, PageNodes& result) {
  if (pages.empty()) return;
  status.assign(pages.size(), 0);
  query(pages, status);
  count_status(status, result);
  result.queried += static_cast<std::int64_t>(pages.size());
  pages.clear();
}

void add_pages(int status, std::int64_t pages, PageNodes& result) {
  if (status >= 0) {
    result.node_pages[status] += pages;
  } else if (status == -ENOENT) {
    result.not_mapped += pages;
  } else {
    result.unqueryable[-status] += pages;
  }
}

}  // namespace

void count_status(std::span<const int> status, PageNodes& result) {
  // Runs of one value are the rule: the map is touched once a run.
  for (std::size_t i = 0; i < status.size();) {
    const int value = status[i];
    std::size_t next = i + 1;
    while (next < status.size() && status[next] == value) ++next;
    add_pages(value, static_cast<std::int64_t>(next - i), result);
    i = next;
  }
}

PageNodes page_nodes(const std::byte* address, std::size_t bytes, std::int64_t max_pages) {
  PageNodes result;
  if (bytes == 0) return result;
  const std::uint64_t page = page_bytes();
  const std::uint64_t first = reinterpret_cast<std::uint64_t>(address) / page;
  const std::uint64_t last = (reinterpret_cast<std::uint64_t>(address) + bytes - 1) / page;
  Sample sample{last - first + 1, last - first + 1};
  if (max_pages > 0 && sample.total > static_cast<std::uint64_t>(max_pages)) {
    sample.count = static_cast<std::uint64_t>(max_pages);
  }
  result.total = static_cast<std::int64_t>(sample.total);
  result.sampled = sample.count < sample.total;
  std::vector<void*> pages;
  std::vector<int> status;
  pages.reserve(kBatch);
  for (std::uint64_t i = 0; i < sample.count; ++i) {
    pages.push_back(reinterpret_cast<void*>((first + sample.page(i)) * page));
    if (pages.size() == kBatch) ask(pages, status, result);
  }
  ask(pages, status, result);
  if (result.sampled) result.share_error = largest_share_error(result.node_pages);
  return result;
}

PageNodes huge_page_nodes(const std::byte* address, std::size_t bytes, std::size_t unit) {
  PageNodes result;
  if (bytes == 0) return result;
  const std::uint64_t page = page_bytes();
  const std::uint64_t first = reinterpret_cast<std::uint64_t>(address) / page * page;
  const std::uint64_t end = (reinterpret_cast<std::uint64_t>(address) + bytes + page - 1) / page * page;
  std::vector<const std::byte*> asked;
  std::vector<std::int64_t> pages;
  for (std::uint64_t at = first; at < end;) {
    const std::uint64_t next = std::min(end, (at / unit + 1) * unit);
    asked.push_back(reinterpret_cast<const std::byte*>(at));
    pages.push_back(static_cast<std::int64_t>((next - at) / page));
    at = next;
  }
  const std::vector<int> status = page_status(asked);
  for (std::size_t i = 0; i < status.size(); ++i) add_pages(status[i], pages[i], result);
  result.total = result.queried = static_cast<std::int64_t>((end - first) / page);
  return result;
}

std::vector<int> page_status(std::span<const std::byte* const> addresses) {
  std::vector<int> status(addresses.size(), 0);
  std::vector<void*> pages;
  for (std::size_t done = 0; done < addresses.size(); done += kBatch) {
    const std::size_t count = std::min(kBatch, addresses.size() - done);
    pages.clear();
    for (const std::byte* address : addresses.subspan(done, count)) pages.push_back(const_cast<std::byte*>(address));
    query(pages, std::span(status).subspan(done, count));
  }
  return status;
}

double largest_share_error(const std::map<int, std::int64_t>& node_pages) {
  std::int64_t known = 0;
  for (const auto& [node, pages] : node_pages) known += pages;
  double largest = 0;
  for (const auto& [node, pages] : node_pages) {
    const double share = static_cast<double>(pages) / static_cast<double>(known);
    largest = std::max(largest, std::sqrt(share * (1 - share) / static_cast<double>(known)));
  }
  return largest;
}

std::string errno_name(int number) {
  const char* name = ::strerrorname_np(number);
  return name != nullptr ? name : fmt::format("{}", number);
}

}  // namespace eb::collectors
