// topo: what the machine is. Facts only; whether a scenario can run on it is doctor's and plan's to say.
#include <sys/statvfs.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "collectors/system_state.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/cli/cli.h"
#include "placement/backing.h"
#include "placement/cgroup.h"
#include "placement/machine.h"
#include "placement/policy.h"
#include "placement/topology.h"

namespace eb::cli {

namespace {

using Json = nlohmann::ordered_json;
using placement::human_bytes;

struct Options {
  bool xml = false;
  std::optional<std::string> input;
};

Json missing(const std::string& reason) { return {{"value", nullptr}, {"reason", reason}}; }

Json pools_json(const std::vector<placement::HugePagePool>& found) {
  Json pools = Json::array();
  for (const placement::HugePagePool& pool : found) {
    pools.push_back({{"page_bytes", pool.page_bytes},
                     {"total_pages", pool.total},
                     {"free_pages", pool.free >= 0 ? Json(pool.free) : missing("not part of a topology file")}});
  }
  return pools;
}

Json nodes_json(const placement::Topology& topology, bool live) {
  const std::vector<collectors::NodeMemory> memory =
      live ? collectors::read_node_memory() : std::vector<collectors::NodeMemory>{};
  auto pools =
      live ? std::map<int, std::vector<placement::HugePagePool>>{} : placement::huge_page_pools_in(topology.hwloc_xml);
  Json nodes = Json::array();
  for (const placement::NumaNode& node : topology.nodes) {
    if (live) pools[node.id] = placement::read_huge_page_pools(node.id);
    Json one = {{"node", node.id}, {"memory_bytes", node.bytes}, {"cpus", node.cpus}, {"allowed", node.allowed}};
    if (live) {
      const auto own =
          std::find_if(memory.begin(), memory.end(), [&](const auto& each) { return each.node == node.id; });
      const bool known = own != memory.end() && own->bytes.contains("MemFree");
      one["free_bytes"] = known ? Json(own->bytes.at("MemFree")) : missing("sysfs has no meminfo for this node");
    }
    one["huge_pages"] = pools_json(pools[node.id]);
    nodes.push_back(std::move(one));
  }
  return nodes;
}

Json link_json(const placement::PciDevice& device, bool live) {
  if (live) {
    if (const auto link = placement::read_pci_link(device.bus_id)) {
      return {{"now_gt_per_s", link->now_gt_per_s},
              {"now_width", link->now_width},
              {"max_gt_per_s", link->max_gt_per_s},
              {"max_width", link->max_width}};
    }
    return missing("sysfs shows no PCIe link for this device");
  }
  if (device.link_gb_per_s > 0) return {{"gb_per_s", device.link_gb_per_s}};
  return missing("the file states no link speed");
}

Json devices_json(const placement::Topology& topology, bool live) {
  Json devices = Json::array();
  for (const placement::PciDevice& device : topology.devices) {
    const int told = live ? pci_numa_node(device.bus_id) : -1;
    const int node = told >= 0 ? told : device.node;
    devices.push_back({{"bus_id", device.bus_id},
                       {"kind", device.kind},
                       {"name", device.name},
                       {"node", node >= 0 ? Json(node) : missing("the system states no NUMA node for this device")},
                       {"link", link_json(device, live)}});
  }
  return devices;
}

Json limit_json(std::int64_t bytes) { return bytes < 0 ? Json("unlimited") : Json(bytes); }

Json limits_json() {
  const placement::MemoryLimits limits = placement::read_memory_limits();
  const placement::MemlockLimit memlock = placement::read_memlock_limit();
  const auto state = collectors::read_os_state();
  const collectors::Reading& mount = state.at("dev_shm_mount");
  const collectors::Reading& size = state.at("dev_shm_bytes");
  Json shm = {
      {"mount", mount.value ? Json(*mount.value) : missing(mount.reason)},
      {"bytes", size.value ? Json(std::stoll(*size.value)) : missing(size.reason)},
      {"free_bytes", limits.shm_free_bytes >= 0 ? Json(limits.shm_free_bytes) : missing("/dev/shm: no statvfs")}};
  Json cgroup = missing("no memory limit on this process's cgroup or its ancestors");
  if (const auto tightest = placement::tightest_cgroup_memory()) {
    cgroup = {{"folder", tightest->folder},
              {"limit_bytes", tightest->limit_bytes},
              {"usage_bytes", tightest->usage_bytes},
              {"reclaimable_file_bytes", tightest->inactive_file_bytes},
              {"free_bytes", tightest->free_bytes()}};
  }
  return {{"dev_shm", std::move(shm)},
          {"memlock_soft_bytes", limit_json(memlock.soft_bytes)},
          {"memlock_hard_bytes", limit_json(memlock.hard_bytes)},
          {"memory_available_bytes",
           limits.available_bytes >= 0 ? Json(limits.available_bytes) : missing("/proc/meminfo has no MemAvailable")},
          {"cgroup_memory", std::move(cgroup)}};
}

Json distances_json(const placement::Topology& topology) {
  Json matrix = Json::array();
  for (const std::vector<int>& row : topology.distances) {
    Json values = Json::array();
    for (const int value : row) values.push_back(value == placement::kNoDistance ? Json(nullptr) : Json(value));
    matrix.push_back(std::move(values));
  }
  return matrix;
}

Json topology_json(const placement::Topology& topology, const std::optional<std::string>& input) {
  const bool live = !input;
  Json json = {{"source", live ? Json("this machine") : Json(*input)},
               {"nodes", nodes_json(topology, live)},
               {"distances", distances_json(topology)},
               {"allowed_cpus", topology.allowed_cpus},
               {"devices", devices_json(topology, live)}};
  json["limits"] = live ? limits_json() : missing("not part of a topology file");
  return json;
}

void print_line(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  fmt::print("{}\n", line);
}

// ---- the table, made from the JSON, so that both say the same

bool known(const Json& value) { return !(value.is_object() && value.contains("value") && value["value"].is_null()); }

std::string bytes_text(const Json& value) {
  if (!known(value)) return "unknown";
  return value.is_string() ? value.get<std::string>() : human_bytes(value.get<std::int64_t>());
}

std::string pools_text(const Json& pools) {
  std::string text;
  for (const Json& pool : pools) {
    const Json& free = pool["free_pages"];
    text += fmt::format("{}{}: {}{}", text.empty() ? "" : ", ", human_bytes(pool["page_bytes"].get<std::int64_t>()),
                        known(free) ? fmt::format("{}/", free.get<std::int64_t>()) : "",
                        pool["total_pages"].get<std::int64_t>());
  }
  return text.empty() ? "none" : text;
}

std::string cpus_text(const Json& cpus) { return placement::node_list(cpus.get<std::vector<int>>()); }

void print_nodes(const Json& json) {
  const bool live = !json["nodes"].empty() && json["nodes"][0].contains("free_bytes");
  fmt::print("NUMA nodes of {}\n", json["source"].get<std::string>());
  print_line(fmt::format("  {:>4}  {:>10}  {:>10}  {:<7}  {:<20}  {}", "node", "memory", "free", "allowed", "CPUs",
                         live ? "huge pages free/total" : "huge pages"));
  for (const Json& node : json["nodes"]) {
    print_line(fmt::format("  {:>4}  {:>10}  {:>10}  {:<7}  {:<20}  {}", node["node"].get<int>(),
                           bytes_text(node["memory_bytes"]), live ? bytes_text(node["free_bytes"]) : "-",
                           node["allowed"].get<bool>() ? "yes" : "no", cpus_text(node["cpus"]),
                           pools_text(node["huge_pages"])));
  }
}

void print_distances(const Json& json) {
  if (json["distances"].empty()) {
    fmt::print("\nDistances: the system states none\n");
    return;
  }
  fmt::print("\nDistances (10: local)\n  {:>4}", "node");
  for (const Json& node : json["nodes"]) fmt::print("{:>5}", node["node"].get<int>());
  fmt::print("\n");
  for (std::size_t i = 0; i < json["distances"].size(); ++i) {
    fmt::print("  {:>4}", json["nodes"][i]["node"].get<int>());
    for (const Json& value : json["distances"][i])
      fmt::print("{:>5}", value.is_null() ? "-" : fmt::format("{}", value.get<int>()));
    fmt::print("\n");
  }
}

std::string link_text(const Json& link) {
  if (!known(link)) return "unknown";
  if (link.contains("gb_per_s")) return fmt::format("{:.1f} GB/s", link["gb_per_s"].get<double>());
  return fmt::format("{} GT/s x{} (max {} GT/s x{})", link["now_gt_per_s"].get<double>(), link["now_width"].get<int>(),
                     link["max_gt_per_s"].get<double>(), link["max_width"].get<int>());
}

void print_devices(const Json& json) {
  if (json["devices"].empty()) {
    fmt::print("\nDevices: none\n");
    return;
  }
  fmt::print("\nDevices\n  {:<13} {:<8} {:>7}  {:<34}  {}\n", "bus id", "kind", "node", "link", "name");
  for (const Json& device : json["devices"]) {
    fmt::print("  {:<13} {:<8} {:>7}  {:<34}  {}\n", device["bus_id"].get<std::string>(),
               device["kind"].get<std::string>(),
               known(device["node"]) ? fmt::format("{}", device["node"].get<int>()) : "unknown",
               link_text(device["link"]), device["name"].get<std::string>());
  }
}

void print_limits(const Json& json) {
  const Json& limits = json["limits"];
  fmt::print("\nCPUs allowed  {}\n", cpus_text(json["allowed_cpus"]));
  if (!known(limits)) return;
  const Json& shm = limits["dev_shm"];
  fmt::print("/dev/shm      {}, {} free ({})\n", bytes_text(shm["bytes"]), bytes_text(shm["free_bytes"]),
             known(shm["mount"]) ? shm["mount"].get<std::string>() : shm["mount"]["reason"].get<std::string>());
  fmt::print("locked memory {} soft, {} hard\n", bytes_text(limits["memlock_soft_bytes"]),
             bytes_text(limits["memlock_hard_bytes"]));
  fmt::print("available     {}\n", bytes_text(limits["memory_available_bytes"]));
  const Json& cgroup = limits["cgroup_memory"];
  if (known(cgroup)) {
    fmt::print("cgroup        {} of {} free ({})\n", bytes_text(cgroup["free_bytes"]),
               bytes_text(cgroup["limit_bytes"]), cgroup["folder"].get<std::string>());
  } else {
    fmt::print("cgroup        no memory limit\n");
  }
}

int show(const Options& options, const Globals& globals) {
  if (options.xml && globals.json) fail(Exit::usage, "topo: --xml and --json exclude each other");
  const placement::Topology topology =
      options.input ? placement::read_topology_xml(*options.input) : placement::read_topology();
  if (options.xml) {
    fmt::print("{}", topology.hwloc_xml);
    return static_cast<int>(Exit::ok);
  }
  const Json json = topology_json(topology, options.input);
  if (globals.json) {
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
    return static_cast<int>(Exit::ok);
  }
  print_nodes(json);
  print_distances(json);
  print_devices(json);
  print_limits(json);
  return static_cast<int>(Exit::ok);
}

}  // namespace

void add_topo(CLI::App& app, const Globals& globals, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("topo", "Show NUMA nodes, distances, devices and limits of this machine");
  command->add_flag("--xml", options->xml, "Print the topology in hwloc's XML");
  command->add_option("--input", options->input, "Show the machine of this hwloc XML file instead")->type_name("FILE");
  command->callback([options, &globals, &action] { action = [options, &globals] { return show(*options, globals); }; });
}

}  // namespace eb::cli
