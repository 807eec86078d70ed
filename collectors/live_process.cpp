#include "collectors/live_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>

#include "collectors/process_maps.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/unique_fd.h"
#include "placement/backing.h"
#include "placement/machine.h"

namespace eb::collectors {

namespace {

constexpr const char* kTableFiles[] = {"/dev/shm/vllm_engram_", "/dev/shm/engram_bench_"};
constexpr const char* kDriverFile = "/dev/nvidiactl";
// Elsewhere below /dev lie file systems of memory: /dev/shm, /dev/hugepages.
constexpr const char* kDriverFiles[] = {"/dev/nvidia", "/dev/dri/", "/dev/infiniband/", "/dev/mem"};
constexpr const char* kUnnamedFile = "/dev/zero (deleted)";  // MAP_SHARED | MAP_ANONYMOUS
constexpr std::string_view kDeleted = " (deleted)";
constexpr std::size_t kLargestNamed = 3;

struct ProcText {
  std::string text;
  int error = 0;  // errno; 0: read
};

ProcText read_proc(const std::string& path) {
  ProcText out;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return {"", errno};
  std::vector<char> buffer(std::size_t{1} << 16U);
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {"", errno};
    if (got == 0) return out;
    out.text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

struct CloseFolder {
  void operator()(DIR* folder) const noexcept { ::closedir(folder); }
};

std::vector<std::string> names_in(const std::string& folder, int& error) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, CloseFolder> opened(::opendir(folder.c_str()));
  error = opened ? 0 : errno;
  while (opened) {
    const dirent* entry = ::readdir(opened.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string link_target(const std::string& path) {
  std::array<char, 4096> text{};
  const ssize_t length = ::readlink(path.c_str(), text.data(), text.size());
  return length < 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(length));
}

// "Key:\tvalue" lines of /proc/PID/status.
std::map<std::string, std::string> fields_of(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t start = line.find_first_not_of(" \t", colon + 1);
    if (start != std::string::npos) fields[line.substr(0, colon)] = line.substr(start);
  }
  return fields;
}

std::optional<std::int64_t> first_number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

// ---- which mappings are tables

MappingKind kind_of(const SmapsEntry& entry) {
  const bool shared = entry.permissions.size() == 4 && entry.permissions[3] == 's';
  for (const char* prefix : kDriverFiles) {
    if (entry.file.starts_with(prefix)) return MappingKind::driver;
  }
  if (shared) return MappingKind::shared;
  // MAP_PRIVATE of a huge page pool has a made-up file behind it.
  return entry.inode == 0 || entry.file.starts_with("/anon_hugepage") ? MappingKind::anonymous : MappingKind::file;
}

// What tells one backing of a process from another: anonymous mappings have nothing but their address.
using Key = std::tuple<MappingKind, std::string, std::uint64_t, std::uint64_t>;

Key key_of(const SmapsEntry& entry) {
  const MappingKind kind = kind_of(entry);
  return {kind, entry.device, entry.inode, kind == MappingKind::anonymous ? entry.start : 0};
}

// `cuda`: the process has mappings of NVIDIA's driver.
bool is_table(const std::string& file, MappingKind kind, std::int64_t bytes, bool cuda, const TableFilter& filter) {
  for (const char* prefix : kTableFiles) {
    if (file.starts_with(prefix)) return true;
  }
  const bool drivers = (kind == MappingKind::driver && file.starts_with(kDriverFile)) || (cuda && file == kUnnamedFile);
  if (drivers && bytes >= filter.driver_bytes) return true;
  if (!filter.match && !filter.min_bytes) return false;
  return (!filter.match || std::regex_search(file, *filter.match)) && (!filter.min_bytes || bytes >= *filter.min_bytes);
}

struct Chosen {
  std::set<Key> keys;
  std::vector<std::pair<std::int64_t, std::string>> largest;  // of the others
};

Chosen choose(const std::vector<SmapsEntry>& maps, const TableFilter& filter) {
  std::map<Key, std::pair<std::int64_t, std::string>> backings;
  bool cuda = false;
  for (const SmapsEntry& entry : maps) {
    cuda = cuda || entry.file.starts_with(kDriverFile);
    auto& [bytes, file] = backings[key_of(entry)];
    bytes += static_cast<std::int64_t>(entry.end - entry.start);
    file = entry.file;
  }
  Chosen chosen;
  for (auto& [key, backing] : backings) {
    if (is_table(backing.second, std::get<MappingKind>(key), backing.first, cuda, filter)) {
      chosen.keys.insert(key);
    } else {
      chosen.largest.push_back(std::move(backing));
    }
  }
  std::sort(chosen.largest.rbegin(), chosen.largest.rend());
  if (chosen.largest.size() > kLargestNamed) chosen.largest.resize(kLargestNamed);
  return chosen;
}

std::string no_tables_text(int pid, const std::string& program, const Chosen& chosen) {
  std::string largest;
  for (const auto& [bytes, file] : chosen.largest) {
    largest += fmt::format("{}{} ({})", largest.empty() ? "" : ", ", file.empty() ? "anonymous memory" : file,
                           placement::human_bytes(bytes));
  }
  return fmt::format(
      "process {} ({}) maps no table: no /dev/shm/vllm_engram_* file, no large memory of NVIDIA's driver, and nothing "
      "that --match or --min-size ask for. Its largest mappings: {}. Name one with --match REGEX, or give the process "
      "that holds the "
      "tables (a worker, not its parent)",
      pid, program, largest.empty() ? "none" : largest);
}

// ---- what is known of the tables

std::int64_t value_of(const SmapsEntry& entry, const char* key) {
  const auto at = entry.bytes.find(key);
  return at == entry.bytes.end() ? 0 : at->second;
}

bool has_flag(const SmapsEntry& entry, const char* flag) {
  std::istringstream words(entry.vm_flags);
  for (std::string word; words >> word;) {
    if (word == flag) return true;
  }
  return false;
}

void add_piece(LiveMapping& mapping, const SmapsEntry& entry) {
  if (mapping.pieces++ == 0) mapping.address = entry.start;
  mapping.bytes += static_cast<std::int64_t>(entry.end - entry.start);
  mapping.rss_bytes += value_of(entry, "Rss");
  const std::int64_t pool = value_of(entry, "Shared_Hugetlb") + value_of(entry, "Private_Hugetlb");
  mapping.pool_bytes += pool;
  if (entry.bytes.contains("Pss") && pool == 0) {
    mapping.pss_bytes = mapping.pss_bytes.value_or(0) + value_of(entry, "Pss");
  }
  mapping.huge_mapped_bytes +=
      value_of(entry, "AnonHugePages") + value_of(entry, "ShmemPmdMapped") + value_of(entry, "FilePmdMapped");
  mapping.parts.push_back({entry.offset, entry.offset + (entry.end - entry.start), {}, 0, std::nullopt});
  if (entry.bytes.contains("Pss") && pool == 0) mapping.parts.back().pss_bytes = value_of(entry, "Pss");
  mapping.huge_asked = mapping.huge_asked || has_flag(entry, "hg");
  mapping.huge_refused = mapping.huge_refused || has_flag(entry, "nh");
}

void add_numa(LiveMapping& mapping, const NumaMapsEntry& entry) {
  mapping.page_bytes =
      mapping.page_bytes == 0 ? entry.kernel_page_bytes : std::min(mapping.page_bytes, entry.kernel_page_bytes);
  LivePiece& part = mapping.parts.back();
  part.page_bytes = entry.kernel_page_bytes;
  for (const auto& [node, pages] : entry.node_pages) part.node_bytes[node] += pages * entry.kernel_page_bytes;
  if (std::find(mapping.policies.begin(), mapping.policies.end(), entry.policy) == mapping.policies.end()) {
    mapping.policies.push_back(entry.policy);
  }
}

// Offsets mean something in a file alone, not in a device or in anonymous memory.
void settle_parts(LiveMapping& mapping) {
  if (mapping.inode != 0 && mapping.kind != MappingKind::driver) {
    const std::size_t all = mapping.parts.size();
    mapping.parts = each_part_once(std::move(mapping.parts));
    mapping.overlaps = mapping.parts.size() < all;
  }
  for (const LivePiece& part : mapping.parts) {
    for (const auto& [node, bytes] : part.node_bytes) mapping.node_bytes[node] += bytes;
  }
}

// Option huge= of the mount with the longest point that `file` lies under; empty: none stated.
std::string mount_huge(const std::string& mounts, const std::string& file) {
  std::istringstream lines(mounts);
  std::string best;
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string source, point, type, options;
    if (!(in >> source >> point >> type >> options)) continue;
    const bool under =
        file.starts_with(point) && (point == "/" || file.size() == point.size() || file[point.size()] == '/');
    if (!under || point.size() < longest) continue;
    longest = point.size();
    const std::size_t at = options.find("huge=");
    best = at == std::string::npos ? "" : options.substr(at + 5, options.find(',', at) - at - 5);
  }
  return best;
}

void read_tables(const std::string& folder, const std::set<Key>& keys, LiveProcess& process) {
  const std::int64_t before = now_ns();
  const ProcText smaps_text = read_proc(folder + "smaps");
  const std::int64_t between = now_ns();
  const ProcText numa_text = read_proc(folder + "numa_maps");
  process.smaps_ns = between - before;
  process.numa_maps_ns = now_ns() - between;
  const auto failed = [&](const char* file, int error) {
    if (error != 0) process.unread.emplace_back(file, std::strerror(error));
  };
  failed("smaps", smaps_text.error);
  failed("numa_maps", numa_text.error);
  // Without smaps its heads still come from maps, so that pages and policies are shown.
  const std::vector<SmapsEntry> smaps =
      parse_smaps(smaps_text.error == 0 ? smaps_text.text : read_proc(folder + "maps").text, nullptr);
  std::map<std::uint64_t, NumaMapsEntry> numa;
  for (NumaMapsEntry& entry : parse_numa_maps(numa_text.text, nullptr)) numa.emplace(entry.address, std::move(entry));

  std::map<Key, LiveMapping> found;
  std::int64_t rss = 0;
  std::int64_t pss = 0;
  process.task_policy = {std::nullopt, "numa_maps shows no stack of this process"};
  for (const SmapsEntry& entry : smaps) {
    rss += value_of(entry, "Rss");
    pss += value_of(entry, "Pss");
    const auto line = numa.find(entry.start);
    // A stack has no policy of its own: the kernel prints the task's.
    if (entry.file == "[stack]" && line != numa.end()) process.task_policy = {line->second.policy, ""};
    const Key key = key_of(entry);
    if (!keys.contains(key)) continue;
    LiveMapping& mapping = found[key];
    mapping.kind = std::get<MappingKind>(key);
    mapping.file = entry.file;
    mapping.device = entry.device;
    mapping.inode = entry.inode;
    add_piece(mapping, entry);
    if (line != numa.end()) add_numa(mapping, line->second);
  }
  if (numa_text.error != 0) process.task_policy.reason = fmt::format("numa_maps: {}", std::strerror(numa_text.error));
  if (smaps_text.error == 0) {
    process.rss_bytes = rss;
    process.pss_bytes = pss;
  }
  const ProcText mounts = read_proc(folder + "mounts");
  failed("mounts", mounts.error);
  for (auto& [key, mapping] : found) {
    settle_parts(mapping);
    if (mapping.kind == MappingKind::shared) mapping.mount_huge = mount_huge(mounts.text, mapping.file);
    process.mappings.push_back(std::move(mapping));
  }
}

// ---- devices

// N of "/dev/nvidiaN"; -1 for /dev/nvidiactl and all else.
int device_minor(std::string file) {
  constexpr std::string_view kPrefix = "/dev/nvidia";
  if (file.ends_with(kDeleted)) file.resize(file.size() - kDeleted.size());
  if (!file.starts_with(kPrefix)) return -1;
  const std::string digits = file.substr(kPrefix.size());
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return static_cast<int>(first_number(digits).value_or(-1));
}

// Bus id by minor, from the driver's /proc/driver/nvidia/gpus/BUS/information.
std::map<int, std::string> bus_ids(const std::string& root) {
  std::map<int, std::string> found;
  const std::string folder = root + "/proc/driver/nvidia/gpus";
  int error = 0;
  for (const std::string& bus : names_in(folder, error)) {
    const auto fields = fields_of(read_proc(folder + "/" + bus + "/information").text);
    const auto minor = fields.find("Device Minor");
    if (minor == fields.end()) continue;
    if (const auto number = first_number(minor->second)) found[static_cast<int>(*number)] = bus;
  }
  return found;
}

// N of every /dev/nvidiaN that the process has mapped or open, and from which of the two that is known.
std::map<int, const char*> open_devices(const std::string& folder, const std::vector<SmapsEntry>& maps,
                                        LiveProcess& process) {
  std::map<int, const char*> minors;
  int error = 0;
  for (const std::string& fd : names_in(folder + "fd", error)) {
    if (const int minor = device_minor(link_target(folder + "fd/" + fd)); minor >= 0) minors[minor] = "fd";
  }
  if (error != 0) process.unread.emplace_back("fd", std::strerror(error));
  for (const SmapsEntry& entry : maps) {
    if (const int minor = device_minor(entry.file); minor >= 0) minors[minor] = "maps";
  }
  return minors;
}

void read_devices(const std::string& folder, const std::vector<SmapsEntry>& maps, const DeviceUsers& users,
                  const std::string& root, LiveProcess& process) {
  const std::map<int, std::string> buses = bus_ids(root);
  const std::map<int, const char*> minors = open_devices(folder, maps, process);
  const auto add = [&](int minor, const std::string& bus, const char* source) {
    process.devices.push_back({minor, bus, bus.empty() ? -1 : pci_numa_node(bus, root), source});
  };
  const auto used = users.find(process.pid);
  for (const std::string& bus : used == users.end() ? std::vector<std::string>{} : used->second) {
    const auto at = std::find_if(buses.begin(), buses.end(), [&](const auto& one) { return one.second == bus; });
    const int minor = at == buses.end() ? -1 : at->first;
    // NVML numbers processes as the host does: of a container's process of that number it may mean another.
    const bool contradicted = minor >= 0 && process.unread.empty() && !minors.contains(minor);
    if (!contradicted) add(minor, bus, "nvml");
  }
  if (!process.devices.empty()) return;
  for (const auto& [minor, source] : minors) {
    const auto bus = buses.find(minor);
    add(minor, bus == buses.end() ? "" : bus->second, source);
  }
}

// ---- a process that cannot be looked at

LiveProcess& refuse(LiveProcess& process, LookCode code, std::string text) {
  process.code = code;
  process.text = std::move(text);
  return process;
}

LiveProcess& refuse_for(LiveProcess& process, int error, const char* file) {
  if (error == ENOENT || error == ESRCH) {
    return refuse(process, LookCode::gone,
                  fmt::format("process {} is gone: there is no /proc/{}. Give the pid of a running process, as this "
                              "pid namespace numbers it",
                              process.pid, process.pid));
  }
  return refuse(
      process, LookCode::not_permitted,
      fmt::format(
          "process {} ({}, user {}) may not be looked into: /proc/{}/{}: {}. Run as that user or as root "
          "(in a container: with its pid namespace and --cap-add SYS_PTRACE). A process that is not dumpable, as "
          "one that changed its user or has capabilities, shows itself to root alone",
          process.pid, process.program.empty() ? "unknown" : process.program,
          process.user_id ? fmt::format("{}", *process.user_id) : "unknown", process.pid, file, std::strerror(error)));
}

// Where a process's memory is to be read. A main thread that has ended shows none, though the others live on with it.
std::string folder_of(int pid, const std::string& root) {
  const std::string own = fmt::format("{}/proc/{}/", root, pid);
  const auto fields = fields_of(read_proc(own + "status").text);
  const auto state = fields.find("State");
  if (state == fields.end() || !state->second.starts_with("Z")) return own;
  int error = 0;
  for (const std::string& thread : names_in(own + "task", error)) {
    const std::string folder = own + "task/" + thread + "/";
    if (!read_proc(folder + "maps").text.empty()) return folder;
  }
  return own;
}

void read_status(const std::string& text, LiveProcess& process) {
  auto fields = fields_of(text);
  process.program = fields["Name"];
  process.user_id = first_number(fields["Uid"]);
  process.threads = first_number(fields["Threads"]);
  process.cpus = fields["Cpus_allowed_list"];
  process.mems_allowed = fields["Mems_allowed_list"];
}

}  // namespace

const char* name(MappingKind kind) noexcept {
  constexpr const char* kNames[] = {"shared", "file", "anonymous", "driver"};
  return kNames[static_cast<int>(kind)];
}

const char* name(LookCode code) noexcept {
  constexpr const char* kNames[] = {"tables", "no_tables", "gone", "not_permitted", "no_memory"};
  return kNames[static_cast<int>(code)];
}

std::int64_t LiveMapping::present_bytes() const noexcept {
  std::int64_t total = 0;
  for (const auto& [node, on_node] : node_bytes) total += on_node;
  return total;
}

LiveProcess look_at_process(int pid, const TableFilter& filter, const DeviceUsers& users, const std::string& root) {
  LiveProcess process;
  process.pid = pid;
  const std::string folder = folder_of(pid, root);
  const ProcText status = read_proc(folder + "status");
  if (status.error != 0) {
    // A /proc that hides other users' processes (hidepid) shows nothing of one that is there.
    const bool hidden = root.empty() && ::kill(pid, 0) != 0 && errno == EPERM;
    return refuse_for(process, hidden ? EPERM : status.error, "status");
  }
  read_status(status.text, process);
  const ProcText maps_text = read_proc(folder + "maps");
  if (maps_text.error != 0) return refuse_for(process, maps_text.error, "maps");
  const std::vector<SmapsEntry> maps = parse_smaps(maps_text.text, nullptr);
  if (maps.empty()) {
    return refuse(process, LookCode::no_memory,
                  fmt::format("process {} ({}) has no memory of its own: it has ended and waits for its parent (a "
                              "zombie), or is a thread of the kernel",
                              pid, process.program));
  }
  read_devices(folder, maps, users, root, process);
  const Chosen chosen = choose(maps, filter);
  if (chosen.keys.empty()) {
    return refuse(process, LookCode::no_tables, no_tables_text(pid, process.program, chosen));
  }
  read_tables(folder, chosen.keys, process);
  if (process.mappings.empty()) return refuse_for(process, ESRCH, "smaps");  // ended, or unmapped, in between
  process.code = LookCode::tables;
  return process;
}

DeviceUsers nvml_device_users(const std::string& nvml_state_json) {
  DeviceUsers users;
  const auto state = nlohmann::json::parse(nvml_state_json, nullptr, false);
  if (!state.is_object() || !state.contains("devices")) return users;
  for (const auto& device : state["devices"]) {
    if (!device.value("bus_id", nlohmann::json()).is_string() || !device.contains("processes")) continue;
    if (!device["processes"].is_array()) continue;
    for (const auto& one : device["processes"]) users[one["pid"].get<int>()].push_back(device["bus_id"]);
  }
  return users;
}

}  // namespace eb::collectors
