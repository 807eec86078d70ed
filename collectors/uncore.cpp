#include "collectors/uncore.h"

#include <dirent.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <regex>

#include "collectors/counter_recipes.h"
#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::collectors {

namespace {

constexpr const char* kPmus = "/sys/bus/event_source/devices";

class LinuxPerf final : public PerfSystem {
 public:
  int open(const PerfEvent& event) override {
    perf_event_attr attributes{};
    attributes.size = sizeof attributes;
    attributes.type = event.type;
    attributes.config = event.config[0];
    attributes.config1 = event.config[1];
    attributes.config2 = event.config[2];
    attributes.disabled = 1;
    attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    const long fd = ::syscall(SYS_perf_event_open, &attributes, -1, event.cpu, -1, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : static_cast<int>(fd);
  }
  void enable(int fd) override {
    ::ioctl(fd, PERF_EVENT_IOC_RESET, 0);
    ::ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
  }
  void disable(int fd) override { ::ioctl(fd, PERF_EVENT_IOC_DISABLE, 0); }
  bool read(int fd, PerfValue& value) override {
    std::uint64_t words[3] = {0, 0, 0};
    if (::read(fd, words, sizeof words) != static_cast<ssize_t>(sizeof words)) return false;
    value = {words[0], words[1], words[2]};
    return true;
  }
  void close(int fd) override { ::close(fd); }
};

// The text of a small file, without its end of line; nullopt where it cannot be read.
std::optional<std::string> text_of(const std::string& path) {
  try {
    std::string text = read_file(path);
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    return text;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  if (DIR* opened = ::opendir(folder.c_str())) {
    while (const dirent* entry = ::readdir(opened)) {
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    ::closedir(opened);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "0,32" or "0-3".
std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string part = list.substr(at, comma - at);
    const std::size_t dash = part.find('-');
    const int first = std::atoi(part.c_str());
    const int last = dash == std::string::npos ? first : std::atoi(part.c_str() + dash + 1);
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    at = comma + 1;
  }
  return numbers;
}

int package_of(const std::string& root, int cpu) {
  const auto text = text_of(fmt::format("{}/sys/devices/system/cpu/cpu{}/topology/physical_package_id", root, cpu));
  return text ? std::atoi(text->c_str()) : -1;
}

// NUMA nodes by the socket that their CPUs belong to.
std::map<int, std::vector<int>> nodes_of_packages(const std::string& root) {
  std::map<int, std::vector<int>> nodes;
  const std::string folder = root + "/sys/devices/system/node/";
  for (const std::string& name : names_in(folder)) {
    int node = 0;
    const char* const end = name.data() + name.size();
    if (!name.starts_with("node") || std::from_chars(name.data() + 4, end, node).ptr != end) continue;
    const std::vector<int> cpus = numbers_of(text_of(folder + name + "/cpulist").value_or(""));
    if (!cpus.empty()) nodes[package_of(root, cpus.front())].push_back(node);
  }
  for (auto& [package, list] : nodes) std::sort(list.begin(), list.end());
  return nodes;
}

std::string why_not_opened(int error, const std::string& root) {
  const std::string paranoid = text_of(root + "/proc/sys/kernel/perf_event_paranoid").value_or("unknown");
  if (error == EACCES || error == EPERM) {
    return fmt::format(
        "perf_event_open: {} (kernel.perf_event_paranoid is {}): run as root or with CAP_PERFMON; a container also "
        "needs a seccomp profile that allows the call",
        std::strerror(error), paranoid);
  }
  if (error == ENOSYS) return "perf_event_open: this kernel has no performance events";
  return fmt::format("perf_event_open: {}", std::strerror(error));
}

// The words of one event of a PMU; `reason` says what its format files do not have.
std::optional<PerfEvent> encode(const std::string& pmu, const EventFields& fields, std::string& reason) {
  const auto type = text_of(pmu + "/type");
  if (!type) {
    reason = fmt::format("{}: no type file", pmu);
    return std::nullopt;
  }
  PerfEvent event;
  event.type = static_cast<std::uint32_t>(std::atoi(type->c_str()));
  for (const auto& [name, value] : fields) {
    const auto format = text_of(fmt::format("{}/format/{}", pmu, name));
    const auto bits = format ? parse_format(*format) : std::nullopt;
    if (!bits || !place(value, *bits, event.config)) {
      reason = fmt::format("{}: this kernel's format of the event has no field {} that takes {:#x}", pmu, name, value);
      return std::nullopt;
    }
  }
  return event;
}

CounterGroup unavailable(const std::string& name, const std::string& object, const std::string& direction,
                         const std::string& reason) {
  CounterGroup group;
  group.reading.name = name;
  group.reading.object = object;
  group.reading.direction = direction;
  group.reading.reason = reason;
  return group;
}

// Opens the counters of recipes, one group a socket.
class Opener {
 public:
  Opener(const std::string& root, PerfSystem& perf)
      : root_(root), perf_(perf), pmus_(names_in(root + kPmus)), nodes_(nodes_of_packages(root)) {}

  std::vector<CounterGroup> open(const CounterRecipe& counter) {
    const std::regex units(counter.units);
    std::map<int, CounterGroup> by_package;
    std::string reason;
    for (const std::string& pmu : pmus_) {
      if (std::regex_match(pmu, units))
        open_unit(fmt::format("{}{}/{}", root_, kPmus, pmu), counter, by_package, reason);
    }
    if (by_package.empty() && reason.empty()) {
      reason =
          fmt::format("no PMU {} in {} (a virtual machine has none; else the kernel's uncore driver is not loaded)",
                      counter.units, kPmus);
    }
    std::vector<CounterGroup> groups;
    if (!reason.empty()) {  // a part that cannot be counted makes no smaller sum
      for (auto& [package, group] : by_package) {
        for (const int fd : group.fds) perf_.close(fd);
      }
      groups.push_back(unavailable(counter.name, counter.object, counter.direction, reason));
      groups.back().reading.source = counter.source;
      return groups;
    }
    for (auto& [package, group] : by_package) {
      group.reading.name = counter.name;
      group.reading.object = counter.object;
      group.reading.direction = counter.direction;
      group.reading.package = package;
      if (const auto own = nodes_.find(package); own != nodes_.end()) group.reading.nodes = own->second;
      group.reading.source = counter.source;
      group.bytes_per_count = counter.bytes_per_count;
      groups.push_back(std::move(group));
    }
    return groups;
  }

 private:
  // All events of the recipe on one PMU, on each CPU that its cpumask names (one a socket).
  void open_unit(const std::string& pmu, const CounterRecipe& counter, std::map<int, CounterGroup>& by_package,
                 std::string& reason) {
    const std::vector<int> cpus = numbers_of(text_of(pmu + "/cpumask").value_or(""));
    if (cpus.empty()) reason = fmt::format("{}: no cpumask", pmu);
    for (const EventFields& fields : counter.events) {
      auto event = encode(pmu, fields, reason);
      if (!event) return;
      for (const int cpu : cpus) {
        event->cpu = cpu;
        const int fd = perf_.open(*event);
        if (fd < 0) {
          reason = why_not_opened(-fd, root_);
        } else {
          by_package[package_of(root_, cpu)].fds.push_back(fd);
        }
      }
    }
  }

  std::string root_;
  PerfSystem& perf_;
  std::vector<std::string> pmus_;
  std::map<int, std::vector<int>> nodes_;
};

}  // namespace

std::shared_ptr<PerfSystem> linux_perf() { return std::make_shared<LinuxPerf>(); }

UncoreCounters::UncoreCounters(const std::string& root, std::shared_ptr<PerfSystem> perf) : perf_(std::move(perf)) {
  const CpuModel cpu = parse_cpuinfo(text_of(root + "/proc/cpuinfo").value_or(""));
  const auto recipe = recipe_for(cpu);
  if (!recipe) {
    const std::string reason = fmt::format("no recipe for {} (collectors/recipes)", text(cpu));
    groups_.push_back(unavailable("memory_bytes", "memory_controller", "both", reason));
    groups_.push_back(unavailable("socket_link_sent_bytes", "socket_link", "sent", reason));
    groups_.push_back(unavailable("pcie_read_bytes", "io_stack", "read", reason));
    return;
  }
  Opener opener(root, *perf_);
  for (const CounterRecipe& counter : recipe->counters) {
    for (CounterGroup& group : opener.open(counter)) groups_.push_back(std::move(group));
  }
  for (const AbsentCounter& one : recipe->absent) {
    groups_.push_back(unavailable(one.name, one.object, one.direction, one.reason));
  }
}

UncoreCounters::~UncoreCounters() { close_all(); }

void UncoreCounters::close_all() noexcept {
  for (CounterGroup& group : groups_) {
    for (const int fd : group.fds) perf_->close(fd);
    group.fds.clear();
  }
}

void UncoreCounters::start() {
  start_ns_ = now_ns();
  for (const CounterGroup& group : groups_) {
    for (const int fd : group.fds) perf_->enable(fd);
  }
}

std::vector<CounterReading> UncoreCounters::stop() {
  for (const CounterGroup& group : groups_) {
    for (const int fd : group.fds) perf_->disable(fd);
  }
  const std::int64_t window_ns = now_ns() - start_ns_;
  std::vector<CounterReading> readings;
  for (const CounterGroup& group : groups_) {
    CounterReading reading = group.reading;
    reading.window_ns = window_ns;
    reading.events = static_cast<int>(group.fds.size());
    double count = 0;
    for (const int fd : reading.reason.empty() ? group.fds : std::vector<int>{}) {
      PerfValue value;
      if (!perf_->read(fd, value)) {
        reading.reason = fmt::format("a counter could not be read: {}", std::strerror(errno));
        break;
      }
      if (value.running_ns == 0) {
        reading.reason = "the counter never ran in the window: others use all of the unit's counters";
        break;
      }
      // Where the kernel takes events in turns, a count stands for the whole window.
      const double share = static_cast<double>(value.running_ns) / static_cast<double>(value.enabled_ns);
      count += static_cast<double>(value.count) / share;
      reading.running_share = std::min(reading.running_share, share);
    }
    if (reading.reason.empty()) reading.bytes = count * group.bytes_per_count;
    readings.push_back(std::move(reading));
  }
  return readings;
}

}  // namespace eb::collectors
