#include "kernels/pretouch.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"

namespace eb::kernels {
namespace {

constexpr int kMadvPopulateWrite = 23;  // MADV_POPULATE_WRITE, missing in older C libraries
constexpr std::size_t kCut = std::size_t{2} << 20;

void populate(std::byte* address, std::size_t bytes) {
  while (::madvise(address, bytes, kMadvPopulateWrite) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    fail_errno(errno, fmt::format("pre-touch of {} bytes (MADV_POPULATE_WRITE; EFAULT: the memory behind the mapping "
                                  "is used up, as on a full tmpfs)",
                                  bytes));
  }
}

// A compare-exchange of a byte with its own value faults the page for writing and cannot lose a concurrent write: it
// either stores what is there, or fails and stores nothing new. (An atomic `or` with 0 may be compiled to a mere load.)
void rewrite(std::byte* address, std::size_t bytes) {
  const std::size_t step = page_bytes();
  for (std::size_t at = 0; at < bytes; at += step) {
    std::atomic_ref<unsigned char> byte(*reinterpret_cast<unsigned char*>(address + at));
    unsigned char value = 0;  // guessed, not loaded: a load first would cost a read fault of its own
    if (!byte.compare_exchange_strong(value, value, std::memory_order_relaxed)) {
      byte.compare_exchange_strong(value, value, std::memory_order_relaxed);
    }
  }
}

// Ends of the parts, as offsets: about equal, cut where the address is a multiple of `cut`, so that no huge page is
// faulted by two threads.
std::vector<std::size_t> part_ends(const std::byte* address, std::size_t bytes, int threads, std::size_t cut) {
  const std::size_t phase = reinterpret_cast<std::uintptr_t>(address) % cut;
  std::vector<std::size_t> ends;
  std::size_t last = 0;
  for (int i = 1; i < threads; ++i) {
    const std::size_t ideal = bytes / static_cast<std::size_t>(threads) * static_cast<std::size_t>(i);
    const std::size_t aligned = (phase + ideal + cut / 2) / cut * cut;
    if (aligned <= phase + last || aligned >= phase + bytes) continue;
    last = aligned - phase;
    ends.push_back(last);
  }
  ends.push_back(bytes);
  return ends;
}

}  // namespace

bool has_populate_write() noexcept {
  static const bool works = [] {
    const std::size_t bytes = page_bytes();
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return false;
    const Mapping page(address, bytes);
    return ::madvise(page.data(), bytes, kMadvPopulateWrite) == 0;
  }();
  return works;
}

void pretouch(std::byte* address, std::size_t bytes, int threads, TouchMethod method, std::size_t cut) {
  if (threads < 1) fail(Exit::usage, "pre-touch with {} threads: at least one is needed", threads);
  if (bytes == 0) return;
  const auto touch = method == TouchMethod::populate_write ? populate : rewrite;
  const std::vector<std::size_t> ends = part_ends(address, bytes, threads, std::max(cut, kCut));

  std::vector<std::exception_ptr> errors(ends.size());
  const auto run = [&](std::size_t part) {
    const std::size_t begin = part == 0 ? 0 : ends[part - 1];
    try {
      touch(address + begin, ends[part] - begin);
    } catch (...) {
      errors[part] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> workers;
    std::size_t started = 1;  // part 0 is the caller's
    try {
      for (; started < ends.size(); ++started) workers.emplace_back(run, started);
    } catch (const std::system_error&) {
      // No more threads to be had: the caller does the rest itself.
    }
    run(0);
    for (; started < ends.size(); ++started) run(started);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void pretouch(std::byte* address, std::size_t bytes, int threads, std::size_t cut) {
  pretouch(address, bytes, threads, has_populate_write() ? TouchMethod::populate_write : TouchMethod::rewrite, cut);
}

}  // namespace eb::kernels
