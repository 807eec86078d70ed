#include "placement/backing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/plan/layout.h"
#include "placement/huge_pages.h"

namespace eb::placement {

namespace {

constexpr std::string_view kStockPrefix = "engram_bench_";

void truncate(int fd, std::size_t bytes, const std::string& what) {
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    fail_errno(errno, fmt::format("{}: truncate to {} bytes", what, bytes));
  }
}

std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0 || text.empty() || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

struct Owner {
  std::int64_t pid = 0;
  std::int64_t start_time = 0;
};

std::optional<Owner> owner_of(std::string_view name) {
  if (!name.starts_with(kStockPrefix)) return std::nullopt;
  name.remove_prefix(kStockPrefix.size());
  const auto pid = take_number(name);
  if (!pid || *pid == 0 || *pid > 0x7fffffff || !name.starts_with('_')) return std::nullopt;
  name.remove_prefix(1);
  const auto start = take_number(name);
  if (!start || !name.starts_with('_')) return std::nullopt;
  name.remove_prefix(1);
  if (!take_number(name) || !name.empty()) return std::nullopt;
  return Owner{*pid, *start};
}

// True where the file was removed.
bool remove_if_stale(const std::string& folder, const std::string& name) {
  const auto owner = owner_of(name);
  if (!owner || process_start_time(static_cast<int>(owner->pid)) == owner->start_time) return false;
  const std::string path = folder + "/" + name;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat found {};
  if (!fd || ::fstat(fd.get(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != ::geteuid()) return false;
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return false;  // someone still holds it
  return ::unlink(path.c_str()) == 0;
}

constexpr unsigned kHugePageShift = 26;  // of memfd_create's flags: log2 of the page size stands there

UniqueFd create_hugetlb(plan::Backing backing, std::size_t bytes) {
  const auto unit = static_cast<std::size_t>(plan::unit_bytes(backing));
  const auto log2 = static_cast<unsigned>(std::countr_zero(unit));
  if (bytes % unit != 0) {
    fail(Exit::failure, "storage.backing {}: {} bytes are no whole number of pages", plan::name(backing), bytes);
  }
  UniqueFd fd(::memfd_create("engram_bench", MFD_CLOEXEC | MFD_HUGETLB | (log2 << kHugePageShift)));
  if (!fd) {
    fail_errno(errno, fmt::format("storage.backing {}: memfd_create over huge pages of {} (ENODEV, ENOENT: this kernel "
                                  "has none of that size)",
                                  plan::name(backing), human_bytes(static_cast<std::int64_t>(unit))));
  }
  truncate(fd.get(), bytes, fmt::format("storage.backing {}", plan::name(backing)));
  return fd;
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + page_bytes() - 1) / page_bytes() * page_bytes(); }

std::byte* aligned(std::byte* address, std::size_t unit) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  return address + (unit - number % unit) % unit;
}

void advise_huge(plan::Backing backing, const Mapping& mapping) {
  if (::madvise(mapping.data(), mapping.size(), MADV_HUGEPAGE) == 0) return;
  fail_errno(errno, fmt::format("storage.backing {}: madvise(MADV_HUGEPAGE) of {} bytes (EINVAL: this kernel has no "
                                "transparent huge pages)",
                                plan::name(backing), mapping.size()));
}

}  // namespace

UniqueFd create_backing(plan::Backing backing, std::size_t bytes) {
  switch (backing) {
    case plan::Backing::shm: {
      UniqueFd fd(::open(kShmFolder, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600));
      if (!fd) fail_errno(errno, "storage.backing shm: a file without a name in /dev/shm (O_TMPFILE)");
      truncate(fd.get(), bytes, "storage.backing shm");
      return fd;
    }
    case plan::Backing::memfd:
      return make_memfd("engram_bench", bytes);
    case plan::Backing::hugetlb_2m:
    case plan::Backing::hugetlb_1g:
      return create_hugetlb(backing, bytes);
    case plan::Backing::shm_thp:
      return create_backing(shm_thp_source() == ThpSource::dev_shm ? plan::Backing::shm : plan::Backing::memfd, bytes);
    case plan::Backing::anon:
    case plan::Backing::anon_thp:
      fail(Exit::usage, "storage.backing {}: private memory has no descriptor to pass", plan::name(backing));
    default:
      fail(Exit::usage, "this storage.backing is not in this version of engram-bench; use shm, memfd or anon");
  }
}

Mapping map_backing(plan::Backing backing, int fd, std::size_t bytes) {
  if (!plan::is_thp(backing)) return Mapping::shared(fd, bytes, "tables");
  // The kernel maps a huge page as one only where its address is a multiple of its size.
  const auto unit = static_cast<std::size_t>(plan::unit_bytes(backing));
  void* reserved = ::mmap(nullptr, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail_errno(errno, fmt::format("storage.backing shm-thp: mmap of {} bytes", bytes));
  auto* const start = aligned(static_cast<std::byte*>(reserved), unit);
  auto* const end = static_cast<std::byte*>(reserved) + bytes + unit;
  void* const mapped = ::mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  const int number = errno;
  if (start > reserved) ::munmap(reserved, static_cast<std::size_t>(start - static_cast<std::byte*>(reserved)));
  auto* const last = start + whole_pages(bytes);
  if (end > last) ::munmap(last, static_cast<std::size_t>(end - last));
  if (mapped == MAP_FAILED) fail_errno(number, fmt::format("storage.backing shm-thp: mmap of {} bytes", bytes));
  Mapping mapping(mapped, bytes);
  advise_huge(backing, mapping);
  return mapping;
}

Mapping map_private(std::size_t bytes, plan::Backing backing) {
  const std::size_t page = page_bytes();
  const auto unit = static_cast<std::size_t>(plan::unit_bytes(backing));
  const std::size_t whole = whole_pages(bytes);
  const std::size_t space = whole + page + unit;
  void* reserved = ::mmap(nullptr, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) {
    fail_errno(errno, fmt::format("storage.backing {}: mmap of {} bytes", plan::name(backing), bytes));
  }
  auto* const first = aligned(static_cast<std::byte*>(reserved) + page, unit);
  // A hole each side would do until the next mmap fills it, so the guard pages stay until the process ends: address
  // space, no memory.
  if (::mprotect(first, whole, PROT_READ | PROT_WRITE) != 0) {
    const int number = errno;
    ::munmap(reserved, space);
    fail_errno(number, fmt::format("storage.backing {}: mprotect of {} bytes", plan::name(backing), bytes));
  }
  Mapping mapping(first, whole);
  if (plan::is_thp(backing)) {
    advise_huge(backing, mapping);
  } else if (::madvise(mapping.data(), mapping.size(), MADV_NOHUGEPAGE) != 0 && errno != EINVAL) {
    // Where the system gives huge pages to all memory (`always`), anon would be anon-thp under another name, and
    // interleave uneven. EINVAL: this kernel has none.
    fail_errno(errno, fmt::format("storage.backing anon: madvise(MADV_NOHUGEPAGE) of {} bytes", bytes));
  }
  return mapping;
}

NamedFile create_stock_file(std::size_t bytes, const std::string& folder) {
  const int pid = ::getpid();
  const std::int64_t start = process_start_time(pid);
  if (start < 0)
    fail(Exit::failure, "storage.policy stock: /proc/{}/stat does not tell this process's start time", pid);
  for (int n = 0; n < 10'000; ++n) {
    NamedFile file;
    file.path = fmt::format("{}/{}{}_{}_{}", folder, kStockPrefix, pid, start, n);
    file.fd = UniqueFd(::open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.fd && errno == EEXIST) continue;
    if (!file.fd) fail_errno(errno, "storage.policy stock: create " + file.path);
    try {
      if (::flock(file.fd.get(), LOCK_SH | LOCK_NB) != 0) fail_errno(errno, "storage.policy stock: flock " + file.path);
      truncate(file.fd.get(), bytes, "storage.policy stock: " + file.path);
    } catch (...) {
      unlink_stock_file(file.path);
      throw;
    }
    return file;
  }
  fail(Exit::failure, "storage.policy stock: {} holds 10000 files of this process; remove {}/{}{}_*", folder, folder,
       kStockPrefix, pid);
}

UniqueFd open_stock_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) fail_errno(errno, "storage.policy stock: open " + path);
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) fail_errno(errno, "storage.policy stock: flock " + path);
  return fd;
}

void unlink_stock_file(const std::string& path) noexcept { ::unlink(path.c_str()); }

int remove_stale_stock_files(const std::string& folder) {
  struct CloseFolder {
    void operator()(DIR* opened) const noexcept { ::closedir(opened); }
  };
  const std::unique_ptr<DIR, CloseFolder> opened(::opendir(folder.c_str()));
  if (!opened) return 0;  // no such folder, so no names in it
  int removed = 0;
  while (const dirent* entry = ::readdir(opened.get())) {
    if (remove_if_stale(folder, entry->d_name)) ++removed;
  }
  return removed;
}

std::int64_t process_start_time(int pid) {
  std::string stat;
  try {
    stat = read_file(fmt::format("/proc/{}/stat", pid));
  } catch (const Error&) {
    return -1;
  }
  // "pid (name) state ...": the name may hold anything, also ") 1 2", so fields count from the last ')'.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return -1;
  std::string_view rest = std::string_view(stat).substr(name_end + 1);
  for (int field = 3; field <= 22; ++field) {
    const std::size_t start = rest.find_first_not_of(' ');
    if (start == std::string_view::npos) return -1;
    rest.remove_prefix(start);
    if (field == 3 && (rest.front() == 'Z' || rest.front() == 'X')) return -1;  // ended, not yet reaped: holds nothing
    if (field < 22) rest.remove_prefix(std::min(rest.find(' '), rest.size()));
  }
  return take_number(rest).value_or(-1);
}

BackingState backing_state(int fd) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) fail_errno(errno, "fstat of a table's backing");
  return {static_cast<std::uint64_t>(found.st_dev), static_cast<std::uint64_t>(found.st_ino),
          static_cast<std::int64_t>(found.st_blocks) * 512};
}

}  // namespace eb::placement
