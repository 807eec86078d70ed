// doctor: what is missing on this machine, for which scenario, and what to do about it. Looks only; a missing thing is
// data, so the exit code is 0 whenever it could look.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "collectors/counters.h"
#include "collectors/page_map.h"
#include "collectors/process_maps.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/cli/cli.h"
#include "harness/cli/settings.h"
#include "harness/plan/scenario.h"
#include "harness/supervise/reroll.h"
#include "placement/backing.h"
#include "placement/cgroup.h"
#include "placement/machine.h"
#include "placement/policy.h"
#include "placement/topology.h"

namespace eb::cli {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using placement::human_bytes;

// ---- the machine

struct Check {
  std::string name;
  bool ok = false;
  std::string found;
  std::string needed_for;
  std::string remedy;  // empty where ok
};

Check check_nodes(const placement::Topology& topology) {
  std::vector<int> usable;
  for (const placement::NumaNode& node : topology.nodes) {
    if (node.bytes > 0 && node.allowed) usable.push_back(node.id);
  }
  return {"numa_nodes", usable.size() >= 2,
          fmt::format("{} with memory for this process (id {})", usable.size(), placement::node_list(usable)),
          "scenarios that move or spread pages between NUMA nodes (bind:1, interleave:0,1)",
          "run on a machine with two NUMA nodes, or widen cpuset.mems of the container"};
}

Check check_cpus(const placement::Topology& topology) {
  const auto count = topology.allowed_cpus.size();
  return {"cpus", count >= 4, fmt::format("{} CPUs allowed", count),
          "timing verdicts on the CPU backend: four ranks need a CPU each, else a run is `oversubscribed`",
          "allow more CPUs (taskset, cpuset.cpus), or read the CPU backend's times as a demonstration only"};
}

Check check_gpu(const placement::Topology& topology) {
  const auto gpus = std::count_if(topology.devices.begin(), topology.devices.end(),
                                  [](const placement::PciDevice& device) { return device.kind == "gpu"; });
  const bool driver = ::access("/dev/nvidiactl", F_OK) == 0;
  return {
      "gpu", gpus > 0 && driver,
      fmt::format("{} NVIDIA devices on the PCI bus, /dev/nvidiactl {}", gpus, driver ? "is there" : "is not there"),
      "device.backend cuda",
      gpus > 0 ? "install NVIDIA's driver, or pass the devices into the container (--gpus all)"
               : "run on a machine with NVIDIA GPUs, or set device.backend to cpu"};
}

Check check_huge_pages(const placement::Topology& topology) {
  std::string found;
  std::int64_t free = 0;
  for (const placement::NumaNode& node : topology.nodes) {
    for (const placement::HugePagePool& pool : placement::read_huge_page_pools(node.id)) {
      free += pool.free;
      found += fmt::format("{}node {}: {} of {} pages of {} free", found.empty() ? "" : "; ", node.id, pool.free,
                           pool.total, human_bytes(pool.page_bytes));
    }
  }
  return {"huge_pages", free > 0, found.empty() ? "this kernel has no huge page pools" : found,
          "storage.backing hugetlb-2m and hugetlb-1g",
          "reserve pages on each node as root: /sys/devices/system/node/node*/hugepages/hugepages-*/nr_hugepages"};
}

Check check_shm(const placement::MemoryLimits& limits) {
  const bool writable = ::access(placement::kShmFolder, W_OK) == 0;
  // Docker's default of 64 MiB is less than any table worth measuring.
  return {"dev_shm", writable && limits.shm_free_bytes > (64LL << 20),
          limits.shm_free_bytes < 0
              ? "/dev/shm is not there"
              : fmt::format("{} free, {}", human_bytes(limits.shm_free_bytes), writable ? "writable" : "not writable"),
          "storage.backing shm and storage.policy stock",
          "give the container a larger /dev/shm (docker --shm-size, --ipc=host), or use storage.backing memfd"};
}

Check check_memory(const placement::MemoryLimits& limits) {
  std::string found = limits.available_bytes < 0 ? "MemAvailable is not known"
                                                 : fmt::format("{} available", human_bytes(limits.available_bytes));
  found += limits.cgroup_free_bytes < 0
               ? ", no cgroup limit"
               : fmt::format(", {} left under the cgroup's limit", human_bytes(limits.cgroup_free_bytes));
  const std::int64_t least = limits.cgroup_free_bytes < 0 ? limits.available_bytes
                                                          : std::min(limits.available_bytes, limits.cgroup_free_bytes);
  return {"memory", least >= (2LL << 30), found, "tables: each scenario's need is checked below",
          "free memory, raise the container's limit, or lower model.table_scale"};
}

Check check_memlock() {
  const placement::MemlockLimit limit = placement::read_memlock_limit();
  return {"memlock", limit.soft_bytes < 0,
          limit.soft_bytes < 0 ? "unlimited" : human_bytes(limit.soft_bytes) + " (soft)",
          "registering tables with a device whose driver counts locked memory (RDMA cards; some drivers)",
          "ulimit -l unlimited, docker --ulimit memlock=-1, or LimitMEMLOCK=infinity of the unit"};
}

// What a container's seccomp profile may refuse, tried on one page.
template <typename Try>
Check check_call(const std::string& name, const std::string& needed_for, Try&& attempt) {
  Check check{name, true, "allowed", needed_for, ""};
  try {
    attempt();
  } catch (const Error& error) {
    check.ok = false;
    check.found = error.what();
    check.remedy = "start the container with --cap-add SYS_NICE or a seccomp profile that allows the call";
  }
  return check;
}

Check check_mbind(const placement::Topology& topology) {
  return check_call("numa_policy", "storage.policy bind, preferred, interleave", [&] {
    const Mapping page = placement::map_private(page_bytes());
    const auto usable = std::find_if(topology.nodes.begin(), topology.nodes.end(),
                                     [](const placement::NumaNode& node) { return node.bytes > 0 && node.allowed; });
    if (usable == topology.nodes.end()) fail(Exit::failure, "no NUMA node may be used");
    placement::apply({plan::PolicyKind::bind, {usable->id}}, page.data(), page.size());
  });
}

Check check_move_pages() {
  return check_call("page_nodes", "the nodes of single pages in placement tables", [] {
    const Mapping page = placement::map_private(page_bytes());
    page.data()[0] = std::byte{1};
    const collectors::PageNodes found = collectors::page_nodes(page.data(), page.size(), 0);
    if (found.node_pages.empty()) fail(Exit::failure, "move_pages gives no node for a page that was just written");
  });
}

Check check_numa_maps() {
  Check check{"numa_maps", true, "readable", "page counts by node in placement tables", ""};
  try {
    static_cast<void>(read_file("/proc/self/numa_maps"));
  } catch (const Error& error) {
    check.ok = false;
    check.found = error.what();
    check.remedy = "use a kernel with CONFIG_NUMA and CONFIG_PROC_PAGE_MONITOR";
  }
  return check;
}

// Opened for two of NVML's windows, to see whether they are given.
Check check_counters() {
  collectors::TrafficCounters counters;
  counters.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  const std::vector<collectors::CounterReading> readings = counters.stop();
  const collectors::TrafficSum links = collectors::cross_socket_bytes(readings);
  const collectors::TrafficSum host = collectors::host_bytes(readings);
  const auto said = [](const collectors::TrafficSum& sum) { return sum.bytes ? std::string("counted") : sum.reason; };
  return {"counters", links.bytes && host.bytes,
          links.bytes && host.bytes
              ? "socket links and memory controllers are counted"
              : fmt::format("socket links: {}; memory controllers, PCIe: {}", said(links), said(host)),
          "hypotheses H1 and H2: counted traffic between sockets and of the host",
          "run on bare metal, as root or with CAP_PERFMON (docs/collectors.md)"};
}

bool on_path(const std::string& tool) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + tool).c_str(), X_OK) == 0) return true;
  }
  return false;
}

Check check_tools() {
  std::string missing;
  for (const char* tool : {"numactl", "numastat", "lstopo", "python3"}) {
    if (!on_path(tool)) missing += (missing.empty() ? "" : ", ") + std::string(tool);
  }
  return {"tools", missing.empty(), missing.empty() ? "numactl, numastat, lstopo, python3" : "not on PATH: " + missing,
          "tests that compare with these tools, and reports; not for `run`", "scripts/setup installs them"};
}

std::vector<Check> check_machine() {
  const placement::Topology topology = placement::read_topology();
  const placement::MemoryLimits limits = placement::read_memory_limits();
  std::vector<Check> checks = {check_nodes(topology), check_cpus(topology),  check_gpu(topology),
                               check_memory(limits),  check_shm(limits),     check_huge_pages(topology),
                               check_memlock(),       check_mbind(topology), check_move_pages(),
                               check_numa_maps(),     check_counters(),      check_tools()};
  for (Check& check : checks) {
    if (check.ok) check.remedy.clear();
  }
  return checks;
}

// ---- the scenarios

struct Verdict {
  std::string file;
  std::vector<supervise::Obstacle> obstacles;

  // What `run` would exit with before it starts.
  [[nodiscard]] Exit exit() const { return obstacles.empty() ? Exit::ok : obstacles.front().exit; }
};

Verdict judge(const std::string& file) {
  Verdict verdict{file, {}};
  try {
    verdict.obstacles = supervise::preflight(load_scenario(file, {}));
  } catch (const Error& error) {
    verdict.obstacles.push_back({error.exit(), error.what()});
  }
  return verdict;
}

// scenarios/ beside the build folder of this program, else in the current folder; empty: neither.
fs::path scenario_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (const fs::path& candidate :
       {program.parent_path().parent_path() / "scenarios", fs::current_path(error) / "scenarios"}) {
    if (fs::is_directory(candidate, error)) return candidate;
  }
  return {};
}

// The files that were named; of a folder, its *.json.
std::vector<std::string> files_of(const std::vector<std::string>& named) {
  std::vector<std::string> files;
  for (const std::string& path : named) {
    std::error_code error;
    if (!fs::exists(path, error)) fail(Exit::usage, "doctor: {}: no such file or folder", path);
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file() && entry.path().extension() == ".json") files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// ---- output

Json to_json(const std::vector<Check>& checks, const std::vector<Verdict>& verdicts) {
  Json machine = Json::array();
  for (const Check& check : checks) {
    machine.push_back({{"check", check.name},
                       {"ok", check.ok},
                       {"found", check.found},
                       {"needed_for", check.needed_for},
                       {"remedy", check.ok ? Json(nullptr) : Json(check.remedy)}});
  }
  Json scenarios = Json::array();
  for (const Verdict& verdict : verdicts) {
    Json obstacles = Json::array();
    for (const supervise::Obstacle& obstacle : verdict.obstacles) {
      obstacles.push_back({{"exit", static_cast<int>(obstacle.exit)}, {"text", obstacle.text}});
    }
    scenarios.push_back({{"file", verdict.file},
                         {"runs_here", verdict.obstacles.empty()},
                         {"exit", static_cast<int>(verdict.exit())},
                         {"obstacles", std::move(obstacles)}});
  }
  return {{"machine", std::move(machine)}, {"scenarios", std::move(scenarios)}};
}

void print(const std::vector<Check>& checks, const std::vector<Verdict>& verdicts) {
  fmt::print("This machine\n");
  for (const Check& check : checks) {
    fmt::print("  {:<8} {:<12} {}\n", check.ok ? "ok" : "missing", check.name, check.found);
    if (check.ok) continue;
    fmt::print("  {:<21} needed for: {}\n  {:<21} remedy: {}\n", "", check.needed_for, "", check.remedy);
  }
  fmt::print("\nScenarios\n");
  if (verdicts.empty()) fmt::print("  none found: name files or a folder, e.g. `engram-bench doctor scenarios`\n");
  for (const Verdict& verdict : verdicts) {
    if (verdict.obstacles.empty()) {
      fmt::print("  {:<8} {}\n", "runs", verdict.file);
      continue;
    }
    fmt::print("  {:<8} {}\n", fmt::format("exit {}", static_cast<int>(verdict.exit())), verdict.file);
    for (const supervise::Obstacle& obstacle : verdict.obstacles) fmt::print("  {:<8}   {}\n", "", obstacle.text);
  }
}

int show(const std::vector<std::string>& named, const Globals& globals) {
  std::vector<std::string> paths = named;
  if (paths.empty()) {
    const fs::path folder = scenario_folder();
    if (!folder.empty()) paths.push_back(folder.string());
  }
  std::vector<Verdict> verdicts;
  for (const std::string& file : files_of(paths)) verdicts.push_back(judge(file));
  const std::vector<Check> checks = check_machine();
  if (globals.json) {
    fmt::print("{}\n", to_json(checks, verdicts).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print(checks, verdicts);
  }
  return static_cast<int>(Exit::ok);
}

}  // namespace

void add_doctor(CLI::App& app, const Globals& globals, Action& action) {
  auto named = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand("doctor", "Say what this machine lacks, for which scenario, and the remedy");
  command->add_option("scenario", *named, "Scenario files or folders; without any, the scenarios/ folder")
      ->type_name("FILE");
  command->callback([named, &globals, &action] { action = [named, &globals] { return show(*named, globals); }; });
}

}  // namespace eb::cli
