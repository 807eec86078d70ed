#include "placement/backing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "harness/base/error.h"
#include "harness/base/os.h"

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
    case plan::Backing::anon:
      fail(Exit::usage, "storage.backing anon: private memory has no descriptor to pass");
    default:
      fail(Exit::usage, "this storage.backing is not in this version of engram-bench; use shm, memfd or anon");
  }
}

Mapping map_private(std::size_t bytes) {
  const std::size_t page = page_bytes();
  const std::size_t whole = (bytes + page - 1) / page * page;
  void* reserved = ::mmap(nullptr, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) fail_errno(errno, fmt::format("storage.backing anon: mmap of {} bytes", bytes));
  auto* const first = static_cast<std::byte*>(reserved);
  // A hole each side would do until the next mmap fills it, so the guard pages stay until the process ends: two pages
  // of address space, no memory.
  if (::mprotect(first + page, whole, PROT_READ | PROT_WRITE) != 0) {
    const int number = errno;
    ::munmap(reserved, whole + 2 * page);
    fail_errno(number, fmt::format("storage.backing anon: mprotect of {} bytes", bytes));
  }
  return {first + page, whole};
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
