#include "placement/cgroup.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::placement {

namespace {

// v1 writes "no limit" as the largest multiple of a page in 63 bits; no machine has 2^60 bytes.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

std::optional<std::string> try_read(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<std::int64_t> read_number(const std::string& path) {
  const auto text = try_read(path);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error == std::errc::result_out_of_range) return kNoLimit;
  if (error != std::errc{}) return std::nullopt;  // "max", or garbage
  return value;
}

std::int64_t stat_value(const std::string& path, std::string_view key) {
  const auto text = try_read(path);
  std::istringstream in(text.value_or(""));
  std::string name;
  for (std::int64_t value = 0; in >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

bool has_word(const std::string& list, std::string_view word) {
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) {
    if (item == word) return true;
  }
  return false;
}

// The hierarchy that controls memory: where it is mounted, and this process's group in it.
struct Hierarchy {
  bool v2 = false;
  std::string mount_point;
  std::string mount_root;  // the group that the mount shows at its top ("/" unless a container mounts its own group)
  std::string group;
};

// Lines of /proc/self/mountinfo: "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw".
std::vector<Hierarchy> find_mounts(const std::string& mountinfo) {
  std::vector<Hierarchy> mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string id, parent, device, field, type, source, options;
    Hierarchy mount;
    in >> id >> parent >> device >> mount.mount_root >> mount.mount_point;
    while (in >> field && field != "-") {
    }
    if (!(in >> type >> source >> options)) continue;
    mount.v2 = type == "cgroup2";
    if (mount.v2 || (type == "cgroup" && has_word(options, "memory"))) mounts.push_back(mount);
  }
  return mounts;
}

// Lines of /proc/self/cgroup: "0::/user.slice" (v2), "4:memory:/docker/ab12" (v1).
std::optional<std::string> group_of(const std::string& proc_cgroup, bool v2) {
  std::istringstream lines(proc_cgroup);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? (line.substr(0, first) == "0" && controllers.empty()) : has_word(controllers, "memory")) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// Path of the group below the mount. A mount that shows another part of the tree than the group's (a container without
// its own cgroup namespace) shows the container's group at its top.
std::string below_mount(const Hierarchy& hierarchy) {
  std::string path = hierarchy.group;
  const std::string& top = hierarchy.mount_root;
  if (top != "/" && (path == top || path.starts_with(top + "/"))) path = path.substr(top.size());
  if (path.find("/..") != std::string::npos) path.clear();  // above our cgroup namespace: not visible
  return path == "/" ? "" : path;
}

std::optional<CgroupMemory> limit_at(const std::string& root, const std::string& folder, bool v2) {
  const std::string path = root + folder + "/";
  const auto limit = read_number(path + (v2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto usage = read_number(path + (v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !usage || *limit >= kNoLimit) return std::nullopt;
  return CgroupMemory{folder, *limit, *usage,
                      stat_value(path + "memory.stat", v2 ? "inactive_file" : "total_inactive_file")};
}

}  // namespace

std::int64_t CgroupMemory::free_bytes() const noexcept {
  const std::int64_t held = std::max<std::int64_t>(0, usage_bytes - inactive_file_bytes);
  return std::max<std::int64_t>(0, limit_bytes - held);
}

std::vector<CgroupMemory> cgroup_memory_limits(const std::string& root) {
  std::vector<CgroupMemory> limits;
  const std::string mountinfo = try_read(root + "/proc/self/mountinfo").value_or("");
  const std::string groups = try_read(root + "/proc/self/cgroup").value_or("");
  for (Hierarchy& hierarchy : find_mounts(mountinfo)) {
    const auto group = group_of(groups, hierarchy.v2);
    if (!group) continue;
    hierarchy.group = *group;
    for (std::string path = below_mount(hierarchy);; path.resize(path.rfind('/'))) {
      if (auto limit = limit_at(root, hierarchy.mount_point + path, hierarchy.v2)) limits.push_back(*limit);
      if (path.empty()) break;
    }
  }
  return limits;
}

std::optional<CgroupMemory> tightest_cgroup_memory(const std::string& root) {
  const std::vector<CgroupMemory> limits = cgroup_memory_limits(root);
  const auto tightest =
      std::min_element(limits.begin(), limits.end(),
                       [](const CgroupMemory& a, const CgroupMemory& b) { return a.free_bytes() < b.free_bytes(); });
  if (tightest == limits.end()) return std::nullopt;
  return *tightest;
}

}  // namespace eb::placement
