#include "collectors/system_state.h"

#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <set>
#include <sstream>

#include "collectors/process_maps.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/cgroup.h"
#include "placement/policy.h"

namespace eb::collectors {

namespace {

struct CloseFolder {
  void operator()(DIR* folder) const noexcept { ::closedir(folder); }
};

// Names in `folder` that begin with `prefix`, sorted; empty where there is no such folder.
std::vector<std::string> entries(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, CloseFolder> opened(::opendir(folder.c_str()));
  if (!opened) return names;
  while (const dirent* entry = ::readdir(opened.get())) {
    const std::string name = entry->d_name;
    if (name.starts_with(prefix) && name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  const auto start =
      std::find_if(text.begin(), text.end(), [](char c) { return std::isspace(static_cast<unsigned char>(c)) == 0; });
  text.erase(text.begin(), start);
  return text;
}

Reading reading_of(const std::string& path) {
  try {
    return {trimmed(read_file(path)), ""};
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

// "always [madvise] never": the word in brackets.
Reading chosen_word(const std::string& path) {
  Reading reading = reading_of(path);
  if (!reading.value) return reading;
  const std::size_t open = reading.value->find('[');
  const std::size_t close = reading.value->find(']', open);
  if (open == std::string::npos || close == std::string::npos) return {std::nullopt, path + ": no [choice] in it"};
  return {reading.value->substr(open + 1, close - open - 1), ""};
}

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

Reading governors() {
  std::set<std::string> found;
  for (const std::string& cpu : entries("/sys/devices/system/cpu", "cpu")) {
    const Reading one = reading_of("/sys/devices/system/cpu/" + cpu + "/cpufreq/scaling_governor");
    if (one.value) found.insert(*one.value);
  }
  if (found.empty()) return {std::nullopt, "no CPU has a cpufreq governor here"};
  return {joined(found), ""};
}

Reading iommu_mode() {
  const std::string folder = "/sys/kernel/iommu_groups";
  std::set<std::string> found;
  for (const std::string& group : entries(folder, "")) {
    const Reading one = reading_of(folder + "/" + group + "/type");
    if (one.value) found.insert(*one.value);
  }
  if (found.empty()) return {std::nullopt, folder + ": no IOMMU group with a readable type"};
  return {joined(found), ""};
}

std::string status_value(const std::string& key) {
  std::istringstream lines(read_file("/proc/self/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":")) return trimmed(line.substr(key.size() + 1));
  }
  return "";
}

Reading cpuset_mems() {
  const std::string value = status_value("Mems_allowed_list");
  if (value.empty()) return {std::nullopt, "/proc/self/status has no Mems_allowed_list"};
  return {value, ""};
}

Reading cgroup_limit() {
  const auto tightest = placement::tightest_cgroup_memory();
  if (!tightest) return {std::nullopt, "no memory limit on this process's cgroup or its ancestors"};
  return {fmt::format("{}", tightest->limit_bytes), ""};
}

// Type and options of the topmost mount on /dev/shm.
Reading shm_mount() {
  std::istringstream lines(read_file("/proc/self/mounts"));
  Reading reading{std::nullopt, "/dev/shm is not a mount of its own"};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    std::string source, point, type, options;
    if (in >> source >> point >> type >> options && point == "/dev/shm") reading = {type + " " + options, ""};
  }
  return reading;
}

Reading shm_size() {
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) != 0) return {std::nullopt, fmt::format("/dev/shm: {}", std::strerror(errno))};
  return {fmt::format("{}", static_cast<std::uint64_t>(shm.f_blocks) * shm.f_frsize), ""};
}

Reading memlock() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return {std::nullopt, std::strerror(errno)};
  return {limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit.rlim_cur), ""};
}

Reading kernel_release() {
  utsname name{};
  if (::uname(&name) != 0) return {std::nullopt, std::strerror(errno)};
  return {name.release, ""};
}

Reading name_space(const char* kind) {
  std::array<char, 64> text{};
  const std::string path = std::string("/proc/self/ns/") + kind;
  const ssize_t length = ::readlink(path.c_str(), text.data(), text.size());
  if (length < 0) return {std::nullopt, path + ": " + std::strerror(errno)};
  return {std::string(text.data(), static_cast<std::size_t>(length)), ""};
}

}  // namespace

std::vector<NodeMemory> read_node_memory(const std::string& sysfs) {
  std::vector<NodeMemory> nodes;
  for (const std::string& name : entries(sysfs, "node")) {
    NodeMemory memory;
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + 4, end, memory.node);
    if (error != std::errc{} || stop != end) continue;
    const Reading text = reading_of(sysfs + "/" + name + "/meminfo");
    std::istringstream lines(text.value.value_or(""));
    // "Node 0 MemTotal:       4679452 kB", "Node 0 HugePages_Total:     0"
    for (std::string line; std::getline(lines, line);) {
      std::istringstream in(line);
      std::string word, key, unit;
      std::int64_t number = 0;
      std::int64_t value = 0;
      if (!(in >> word >> number >> key >> value) || key.empty() || key.back() != ':') continue;
      key.pop_back();
      in >> unit;
      memory.bytes[key] = unit == "kB" ? value * 1024 : value;
    }
    for (const std::string& pool : entries(sysfs + "/" + name + "/hugepages", "hugepages-")) {
      // "hugepages-2048kB"
      std::int64_t kib = 0;
      const auto parsed = std::from_chars(pool.data() + 10, pool.data() + pool.size(), kib);
      const Reading free = reading_of(sysfs + "/" + name + "/hugepages/" + pool + "/free_hugepages");
      if (parsed.ec != std::errc{} || kib <= 0 || !free.value) continue;
      std::int64_t pages = 0;
      if (std::istringstream(*free.value) >> pages) memory.free_huge_pages[kib * 1024] = pages;
    }
    if (!memory.bytes.empty()) nodes.push_back(std::move(memory));
  }
  std::sort(nodes.begin(), nodes.end(), [](const NodeMemory& a, const NodeMemory& b) { return a.node < b.node; });
  return nodes;
}

std::map<std::string, Reading> read_os_state() {
  return {
      {"numa_balancing", reading_of("/proc/sys/kernel/numa_balancing")},
      {"thp_anon", chosen_word("/sys/kernel/mm/transparent_hugepage/enabled")},
      {"thp_shmem", chosen_word("/sys/kernel/mm/transparent_hugepage/shmem_enabled")},
      {"zone_reclaim_mode", reading_of("/proc/sys/vm/zone_reclaim_mode")},
      {"ksm_run", reading_of("/sys/kernel/mm/ksm/run")},
      {"cpu_governor", governors()},
      {"cpuset_mems", cpuset_mems()},
      {"cgroup_memory_limit_bytes", cgroup_limit()},
      {"dev_shm_mount", shm_mount()},
      {"dev_shm_bytes", shm_size()},
      {"memlock_bytes", memlock()},
      {"kernel", kernel_release()},
      {"iommu", iommu_mode()},
      {"ipc_namespace", name_space("ipc")},
      {"mount_namespace", name_space("mnt")},
      {"cgroup_namespace", name_space("cgroup")},
  };
}

RankState read_rank_state() {
  RankState state;
  state.cpus = placement::own_cpus();
  state.mems_allowed = status_value("Mems_allowed_list");
  try {
    state.task_policy = placement::task_policy();
  } catch (const Error& error) {
    // A container may refuse get_mempolicy; the rest of the state is still worth having.
    state.task_policy_reason = error.what();
  }
  const Reading rollup = reading_of("/proc/self/smaps_rollup");
  if (rollup.value) state.rollup_bytes = parse_rollup(*rollup.value);
  return state;
}

std::int64_t cgroup_free_bytes() {
  const auto tightest = placement::tightest_cgroup_memory();
  return tightest ? tightest->free_bytes() : -1;
}

}  // namespace eb::collectors
