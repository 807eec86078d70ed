#include "harness/result/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"

namespace eb::result {

namespace fs = std::filesystem;

namespace {

constexpr const char* kManifest = "MANIFEST.sha256";
constexpr const char* kFolders[] = {"events", "samples", "placement", "observed", "failures", "trace"};
constexpr const char* kReserve = "reserve.tmp";  // no file of the run: run_files leaves it out
constexpr const char* kFiles[] = {"plan.json", "result.json", "topology.xml", "log.txt", kReserve, kManifest};

bool is_run_folder(const fs::path& path) { return fs::exists(path / "result.json") || fs::exists(path / "plan.json"); }

void remove_earlier_run(const fs::path& path) {
  // The manifest goes first: what is left of a removal that was cut short does not verify.
  std::error_code error;
  fs::remove(path / kManifest, error);
  for (const char* name : kFiles) fs::remove(path / name, error);
  for (const char* name : kFolders) fs::remove_all(path / name, error);
  if (error) fail(Exit::failure, "{}: the earlier run cannot be removed: {}", path.string(), error.message());
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

RunFolder::RunFolder(const std::string& path, bool force) : path_(path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status)) {
    if (!force) {
      fail(Exit::usage, "output folder {} exists: choose another with -o, or overwrite its run with --force", path);
    }
    if (!fs::is_directory(status) || (!is_run_folder(path) && !fs::is_empty(path))) {
      fail(Exit::usage, "{} is not the folder of a run, so --force does not overwrite it: choose another with -o",
           path);
    }
    remove_earlier_run(path);
  }
  for (const char* name : kFolders) {
    fs::create_directories(fs::path(path) / name, error);
    if (error) fail(Exit::failure, "output folder {} cannot be made: {}", path, error.message());
  }
}

void RunFolder::write(const std::string& name, const std::string& text) {
  const fs::path target = fs::path(path_) / name;
  std::error_code error;
  fs::create_directories(target.parent_path(), error);
  if (error) fail(Exit::failure, "{}: {}", target.parent_path().string(), error.message());
  write_file_atomic(target.string(), text);
}

void RunFolder::append_log(const std::string& line) {
  const std::string name = path_ + "/log.txt";
  const UniqueFd fd(::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) fail_errno(errno, name);
  const std::string text = line + '\n';
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail_errno(errno, name);
}

EventFile RunFolder::event_file(int rank) const { return EventFile(fmt::format("{}/events/rank-{}.npy", path_, rank)); }

void RunFolder::keep_reserve(std::size_t bytes) {
  if (bytes <= reserved_) return;
  const std::string name = path_ + "/" + kReserve;
  const UniqueFd fd(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) fail_errno(errno, name);
  // Where a file system cannot do it (9p, NFS 3), the C library writes into each block, and reads it before.
  const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) fail_errno(error, fmt::format("{}: {} bytes kept aside for the end of the record", path_, bytes));
  reserved_ = bytes;
}

void RunFolder::release_reserve() noexcept {
  ::unlink((path_ + "/" + kReserve).c_str());
  reserved_ = 0;
}

void RunFolder::seal(const std::string& result_text) {
  std::string manifest;
  for (const std::string& name : run_files(path_)) {
    if (name != "result.json") manifest += fmt::format("{}  {}\n", sha256_file(path_ + "/" + name), name);
  }
  manifest +=
      fmt::format("{}  result.json\n", sha256_hex(std::as_bytes(std::span(result_text.data(), result_text.size()))));
  write_file_atomic(path_ + "/" + kManifest, manifest);
  write_file_atomic(path_ + "/result.json", result_text);
}

std::vector<std::string> run_files(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    // Not fs::relative: it asks the system for each part of both paths.
    const std::string name = entry.path().lexically_relative(path).generic_string();
    if (name != kManifest && !name.ends_with(".tmp")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string default_folder(const std::string& scenario_name) {
  std::string safe;
  for (const char c : scenario_name) {
    const bool plain =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '.';
    safe += plain ? c : '_';
  }
  if (safe.empty() || safe[0] == '.') safe = "run" + safe;
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &utc);
  return fmt::format("results/{}-{}", safe, stamp);
}

}  // namespace eb::result
