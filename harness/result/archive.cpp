#include "harness/result/archive.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"
#include "harness/plan/nearest.h"
#include "harness/result/folder.h"
#include "harness/result/verify.h"

namespace eb::result {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSchema = "engram-bench/archive";
constexpr int kSchemaVersion = 1;
constexpr const char* kRuns = "runs";          // runs/ID/{entry.json, run/...}
constexpr const char* kIncoming = "incoming";  // on its way in or out; holds nothing while nobody has the lock
constexpr std::size_t kLeastIdDigits = 4;
constexpr std::string_view kLatest = "@latest";

void sync_folder(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail_errno(errno, path);
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(Exit::failure, "{}: cannot be made: {}", path, error.message());
}

void copy_file(const std::string& from, const std::string& to) {
  const UniqueFd in(::open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!in) fail_errno(errno, from);
  const UniqueFd out(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!out) fail_errno(errno, to);
  std::array<char, 1 << 16> piece;
  for (;;) {
    const ssize_t got = ::read(in.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(errno, from);
    if (got == 0) break;
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = ::write(out.get(), piece.data() + done, static_cast<std::size_t>(got - done));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail_errno(errno, to);
      done += put;
    }
  }
  if (::fsync(out.get()) != 0) fail_errno(errno, to);
}

std::string text_at(const Json& json, const char* key) {
  const Json value = json.value(key, Json());
  return value.is_string() ? value.get<std::string>() : "";
}

ArchiveEntry entry_of_json(const Json& json) {
  ArchiveEntry entry;
  entry.id = json.at("id").get<std::string>();
  entry.name = json.at("name").get<std::string>();
  entry.date = json.at("date").get<std::string>();
  entry.added = json.at("added").get<std::string>();
  entry.version = text_at(json, "version");
  entry.commit = text_at(json, "commit");
  entry.binary_sha256 = text_at(json, "binary_sha256");
  entry.plan_sha256 = text_at(json, "plan_sha256");
  entry.complete = json.at("complete").get<bool>();
  entry.injected = json.at("injected").get<bool>();
  entry.files = json.at("files").get<std::int64_t>();
  entry.bytes = json.at("bytes").get<std::int64_t>();
  entry.verdicts = json.at("verdicts");
  return entry;
}

// An entry of a run that lies in `folder`, as its own files tell it.
ArchiveEntry describe(const std::string& folder, const std::string& id, const std::string& name) {
  const Json result = Json::parse(read_file(folder + "/result.json"));
  const Json plan = Json::parse(read_file(folder + "/plan.json"));
  ArchiveEntry entry;
  entry.id = id;
  entry.name = name.empty() ? text_at(result, "name") : name;
  const Json& context = result.at("context");
  entry.date = text_at(context, "date");
  entry.added = utc_now();
  entry.version = text_at(context, "version");
  entry.commit = text_at(context, "commit");
  entry.binary_sha256 = text_at(result.at("conditions"), "binary_sha256");
  entry.plan_sha256 = text_at(plan, "sha256");
  entry.complete = result.value("complete", false);
  for (const Json& arm : result.at("arms")) {
    entry.injected = entry.injected || (arm.contains("injected") && !arm.at("injected").is_null());
  }
  for (const Json& one : result.at("comparisons")) {
    entry.verdicts.push_back({{"arms", one.at("arms")}, {"metric", one.at("metric")}, {"verdict", one.at("verdict")}});
  }
  return entry;
}

std::vector<std::string> manifest_names(const std::string& folder) {
  std::vector<std::string> names;
  std::istringstream lines(read_file(folder + "/MANIFEST.sha256"));
  for (std::string line; std::getline(lines, line);)
    names.push_back(line.substr(std::min<std::size_t>(66, line.size())));
  return names;
}

bool by_date(const ArchiveEntry& a, const ArchiveEntry& b) { return std::tie(a.date, a.id) < std::tie(b.date, b.id); }

// A run with its entry, whole and on disk, in `incoming`.
ArchiveEntry copy_in(const std::string& folder, const std::string& incoming, const std::string& id,
                     const std::string& name) {
  std::set<std::string> folders = {incoming, incoming + "/run"};
  std::int64_t bytes = 0;
  std::vector<std::string> names = manifest_names(folder);
  names.emplace_back("MANIFEST.sha256");
  make_folder(incoming + "/run");
  for (const std::string& file : names) {
    const std::string to = incoming + "/run/" + file;
    make_folder(fs::path(to).parent_path().string());
    for (fs::path at = fs::path(to).parent_path(); folders.insert(at.string()).second; at = at.parent_path()) {
    }
    copy_file(folder + "/" + file, to);
    bytes += static_cast<std::int64_t>(fs::file_size(to));
  }
  if (sha256_file(incoming + "/run/MANIFEST.sha256") != id) {
    fail(Exit::bad_data, "{}: changed while it was copied; nothing was added", folder);
  }
  check_hashes(incoming + "/run");
  ArchiveEntry entry = describe(incoming + "/run", id, name);
  entry.files = static_cast<std::int64_t>(names.size());
  entry.bytes = bytes;
  write_file_atomic(incoming + "/entry.json", dump(entry_json(entry)) + "\n");
  for (const std::string& one : folders) sync_folder(one);
  return entry;
}

void check_name(const std::string& name) {
  const bool odd = std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20; });
  if (odd || name.ends_with(kLatest)) {
    fail(Exit::usage, "--name {}: a run's name has no control characters and does not end in {}", name, kLatest);
  }
}

// Errors: Error(usage), Error(bad_data).
void check_archive_file(const std::string& path) {
  const Json json = Json::parse(read_file(path + "/archive.json"), nullptr, false);
  if (!json.is_object() || text_at(json, "schema") != kSchema || !json.contains("schema_version")) {
    fail(Exit::usage, "{}: archive.json is not that of an archive of runs; name another folder with --archive", path);
  }
  const Json version = json.at("schema_version");
  if (version != kSchemaVersion) {
    fail(Exit::bad_data,
         "{}: an archive of version {}, this program reads version {}: use the engram-bench that wrote it or a newer "
         "one; nothing was changed",
         path, version.dump(), kSchemaVersion);
  }
}

bool holds_anything_else(const std::string& path) {
  const std::set<std::string> own = {"lock",       kRuns,           kIncoming, "archive.json", "archive.json.tmp",
                                     "index.json", "index.json.tmp"};
  return std::any_of(fs::directory_iterator(path), fs::directory_iterator(),
                     [&](const fs::directory_entry& one) { return !own.contains(one.path().filename().string()); });
}

}  // namespace

Json entry_json(const ArchiveEntry& entry) {
  const auto text = [](const std::string& value, const char* reason) {
    return value.empty() ? missing(reason) : Json(value);
  };
  return {{"id", entry.id},
          {"name", entry.name},
          {"date", entry.date},
          {"added", entry.added},
          {"version", entry.version},
          {"commit", text(entry.commit, "the run does not say which commit its program was built from")},
          {"binary_sha256", text(entry.binary_sha256, "the run does not say which program ran it")},
          {"plan_sha256", entry.plan_sha256},
          {"complete", entry.complete},
          {"injected", entry.injected},
          {"files", entry.files},
          {"bytes", entry.bytes},
          {"verdicts", entry.verdicts}};
}

Archive::Archive(const std::string& path, ArchiveUse use) : path_(path) {
  std::error_code error;
  const bool exists = fs::exists(path + "/archive.json", error);
  if (use == ArchiveUse::read && !exists) {
    fail(Exit::usage,
         "{}: no archive there; make one with engram-bench archive add DIR, or name another with --archive", path);
  }
  if (use == ArchiveUse::write) make_folder(path);
  const std::string lock = path + "/lock";
  const int flags = use == ArchiveUse::write ? O_RDWR | O_CREAT : O_RDONLY;
  if (use == ArchiveUse::write && !exists && holds_anything_else(path)) {
    fail(Exit::usage, "{}: holds other things and no archive; name an empty folder or an archive with --archive", path);
  }
  lock_ = UniqueFd(::open(lock.c_str(), flags | O_CLOEXEC, 0644));
  const bool unlocked = !lock_ && errno == ENOENT && use == ArchiveUse::read;  // a copy without it: nobody writes there
  if (!lock_ && !unlocked) fail_errno(errno, lock);
  while (lock_ && ::flock(lock_.get(), use == ArchiveUse::write ? LOCK_EX : LOCK_SH) != 0) {
    if (errno != EINTR) fail_errno(errno, lock);
  }
  if (use == ArchiveUse::write) {
    if (!fs::exists(path + "/archive.json")) {
      write_file_atomic(path + "/archive.json", dump({{"schema", kSchema}, {"schema_version", kSchemaVersion}}) + "\n");
    }
    check_archive_file(path);
    make_folder(path + "/" + kRuns);
    fs::remove_all(path + "/" + kIncoming, error);
    if (error) fail(Exit::failure, "{}/{}: cannot be removed: {}", path, kIncoming, error.message());
    make_folder(path + "/" + kIncoming);
  } else {
    check_archive_file(path);
  }
  load();
}

void Archive::load() {
  std::set<std::string> there;
  if (fs::exists(path_ + "/" + kRuns)) {
    for (const auto& one : fs::directory_iterator(path_ + "/" + kRuns)) there.insert(one.path().filename().string());
  }
  const auto take = [&](const Json& list) {
    entries_.clear();
    std::set<std::string> listed;
    for (const Json& one : list) {
      entries_.push_back(entry_of_json(one));
      listed.insert(entries_.back().id);
    }
    return listed == there && entries_.size() == there.size();
  };
  bool fits = false;
  try {
    fits = take(Json::parse(read_file(path_ + "/index.json")).at("runs"));
  } catch (const Json::exception&) {
  } catch (const Error&) {
  }
  if (!fits) {  // a writer was killed between the rename of a run and the index
    Json list = Json::array();
    for (const std::string& id : there) {
      const std::string file = fmt::format("{}/{}/{}/entry.json", path_, kRuns, id);
      const Json one = Json::parse(read_file(file), nullptr, false);
      if (!one.is_object() || text_at(one, "id") != id) {
        fail(Exit::bad_data, "{}: not the entry of this run; move {}/{}/{} away and add its run again", file, path_,
             kRuns, id);
      }
      list.push_back(one);
    }
    take(list);
  }
  std::sort(entries_.begin(), entries_.end(), by_date);
}

void Archive::write_index() const {
  Json runs = Json::array();
  for (const ArchiveEntry& entry : entries_) runs.push_back(entry_json(entry));
  write_file_atomic(path_ + "/index.json",
                    dump({{"schema", kSchema}, {"schema_version", kSchemaVersion}, {"runs", runs}}) + "\n");
}

std::string Archive::folder_of(const ArchiveEntry& entry) const {
  return fmt::format("{}/{}/{}/run", path_, kRuns, entry.id);
}

void Archive::check_id(const ArchiveEntry& entry) const {
  const std::string manifest = folder_of(entry) + "/MANIFEST.sha256";
  if (!fs::exists(manifest) || sha256_file(manifest) != entry.id) {
    fail(Exit::bad_data, "{}: not the manifest that the run was added with; remove the run, and add it again",
         manifest);
  }
}

const ArchiveEntry& Archive::add(const std::string& folder, const std::string& name, bool& added) {
  if (!name.empty()) check_name(name);
  const std::string id = sha256_file(folder + "/MANIFEST.sha256");
  const auto of_id = [&] {
    return std::find_if(entries_.begin(), entries_.end(), [&](const ArchiveEntry& one) { return one.id == id; });
  };
  added = of_id() == entries_.end();
  if (!added) return *of_id();
  const std::string incoming = fmt::format("{}/{}/{}", path_, kIncoming, id);
  ArchiveEntry entry;
  try {
    entry = copy_in(folder, incoming, id, name);
    const std::string place = fmt::format("{}/{}/{}", path_, kRuns, id);
    if (::rename(incoming.c_str(), place.c_str()) != 0) fail_errno(errno, place);
  } catch (...) {
    std::error_code ignored;  // the next writer removes what is left
    fs::remove_all(incoming, ignored);
    throw;
  }
  sync_folder(path_ + "/" + kRuns);
  entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry, by_date), std::move(entry));
  return *of_id();
}

void Archive::remove(const std::vector<std::string>& ids) {
  for (const std::string& id : ids) {
    const std::string place = fmt::format("{}/{}/{}", path_, kRuns, id);
    const std::string out = fmt::format("{}/{}/{}", path_, kIncoming, id);
    if (::rename(place.c_str(), out.c_str()) != 0 && errno != ENOENT) fail_errno(errno, place);
  }
  sync_folder(path_ + "/" + kRuns);
  load();
  write_index();
  for (const std::string& id : ids) {
    std::error_code error;
    fs::remove_all(fmt::format("{}/{}/{}", path_, kIncoming, id), error);
    if (error) fail(Exit::failure, "{}: cannot be removed: {}", id, error.message());
  }
}

namespace {

std::string candidates(const std::vector<const ArchiveEntry*>& list) {
  std::string text;
  for (const ArchiveEntry* one : list) text += fmt::format("\n  {}  {}  {}", one->short_id(), one->date, one->name);
  return text;
}

bool is_id_prefix(const std::string& text) {
  return text.size() >= kLeastIdDigits && text.size() <= 64 &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

const ArchiveEntry& Archive::find(const std::string& text) const {
  const bool latest = text.ends_with(kLatest);
  const std::string name = latest ? text.substr(0, text.size() - kLatest.size()) : text;
  std::vector<const ArchiveEntry*> named;
  std::vector<const ArchiveEntry*> by_id;
  std::vector<std::string> names;
  for (const ArchiveEntry& one : entries_) {
    if (one.name == name) named.push_back(&one);
    if (!latest && is_id_prefix(text) && one.id.starts_with(text)) by_id.push_back(&one);
    names.push_back(one.name);
  }
  if (latest) {
    const auto complete =
        std::find_if(named.rbegin(), named.rend(), [](const ArchiveEntry* one) { return one->complete; });
    if (complete != named.rend()) return **complete;
    if (!named.empty()) fail(Exit::usage, "archive:{}: no run of this name is complete:{}", text, candidates(named));
  }
  const std::vector<const ArchiveEntry*>& found = named.empty() ? by_id : named;
  if (found.size() == 1) return *found.front();
  if (!found.empty()) {
    fail(Exit::usage, "archive:{}: {} runs in {} fit; name one by its id, or take the newest with NAME@latest:{}", text,
         found.size(), path_, candidates(found));
  }
  if (entries_.empty()) fail(Exit::usage, "archive:{}: the archive {} holds no run", text, path_);
  fail(Exit::usage,
       "archive:{}: no run of this name or id in {}; nearest name: {} (engram-bench archive list shows all)", text,
       path_, plan::nearest(name, names));
}

std::vector<ArchiveEntry> to_prune(const std::vector<ArchiveEntry>& entries, const PruneRule& rule) {
  constexpr std::string_view kDay = "dddd-dd-dd";
  constexpr std::string_view kTime = "dddd-dd-ddTdd:dd:ddZ";
  const auto fits = [&](std::string_view form) {
    return std::equal(rule.before.begin(), rule.before.end(), form.begin(), form.end(),
                      [](char c, char f) { return f == 'd' ? c >= '0' && c <= '9' : c == f; });
  };
  if (!rule.before.empty() && !fits(kDay) && !fits(kTime)) {
    fail(Exit::usage, "--before {}: write a day as 2026-01-31, or a time as 2026-01-31T12:00:00Z (UTC)", rule.before);
  }
  std::map<std::string, int> kept;  // complete runs of each name, from the newest
  std::vector<ArchiveEntry> out;
  for (auto one = entries.rbegin(); one != entries.rend(); ++one) {
    if (!rule.name.empty() && one->name != rule.name) continue;
    bool goes = rule.before.empty() || one->date < rule.before;
    if (rule.keep) {
      if (one->complete && kept[one->name] < *rule.keep) {
        ++kept[one->name];
        goes = false;
      }
    }
    if (goes) out.push_back(*one);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace eb::result
