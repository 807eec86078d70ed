// result.json: who ran, on what, under which conditions, and what was effective of what was configured.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "collectors/nvml.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"
#include "harness/rank/backend_factory.h"
#include "harness/result/commit.h"
#include "harness/result/record.h"
#include "harness/result/snapshots.h"
#include "harness/supervise/binding.h"
#include "placement/policy.h"

namespace eb::result {

namespace {

// Only these: a whole environment holds secrets.
constexpr const char* kEnvironment[] = {
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "CUDA_VISIBLE_DEVICES",
    "NCCL_DEBUG",      "MALLOC_ARENA_MAX",     "NO_COLOR",          "LANG"};

std::string first_line(const std::string& path) {
  try {
    const std::string text = read_file(path);
    return text.substr(0, text.find('\n'));
  } catch (const Error&) {
    return "";
  }
}

Json number_in(const std::string& path, double scale, const char* what) {
  const std::string text = first_line(path);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return text.empty() || end == text.c_str() ? missing(fmt::format("{}: not readable ({})", what, path))
                                             : Json(value * scale);
}

// /proc/cpuinfo's clock where cpufreq is not there.
Json mhz_per_cpu() {
  const Json from_sysfs = number_in("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", 1e-3, "cpufreq");
  if (from_sysfs.is_number()) return from_sysfs;
  try {
    const std::string text = read_file("/proc/cpuinfo");
    const std::size_t at = text.find("cpu MHz");
    if (at != std::string::npos) return std::strtod(text.c_str() + text.find(':', at) + 1, nullptr);
  } catch (const Error&) {
  }
  return missing("neither cpufreq nor /proc/cpuinfo states a clock");
}

Json scaling_enabled() {
  const std::string governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  return governor.empty() ? missing("no cpufreq governor is visible") : Json(governor != "performance");
}

Json caches() {
  Json list = Json::array();
  for (int i = 0; i < 8; ++i) {
    const std::string base = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", i);
    const std::string level = first_line(base + "level");
    if (level.empty()) break;
    const std::string size = first_line(base + "size");
    std::int64_t bytes = std::strtoll(size.c_str(), nullptr, 10);
    if (size.ends_with("K")) bytes *= 1024;
    if (size.ends_with("M")) bytes *= 1024 * 1024;
    const std::string shared = first_line(base + "shared_cpu_list");
    list.push_back({{"type", first_line(base + "type")},
                    {"level", std::strtol(level.c_str(), nullptr, 10)},
                    {"size", bytes},
                    {"shared_cpu_list", shared}});
  }
  return list;
}

Json load_average() {
  double load[3] = {};
  Json list = Json::array();
  const int count = ::getloadavg(load, 3);
  for (int i = 0; i < count; ++i) list.push_back(load[i]);
  return list;
}

std::string link_of(const char* path) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(path, error);
  return error ? "" : target.string();
}

Json text_or_missing(const std::string& text, const std::string& reason) {
  return text.empty() ? missing(reason) : Json(text);
}

Json hash_of_file(const std::string& path, const std::string& none) {
  if (path.empty() || path == "identity") return missing(none);
  try {
    return sha256_file(path);
  } catch (const Error& error) {
    return missing(error.what());
  }
}

// The sequence of batch shapes of every replica over one period: the same input batched differently is another
// condition.
std::string batch_shapes(const plan::Scenario& scenario) {
  std::string text;
  for (int replica = 0; replica < scenario.parallel.dp; ++replica) {
    text += fmt::format("replica {}:", replica);
    for (const plan::Batch& batch : scenario.workload.batches_of(replica)) {
      text += fmt::format(" prefill {} decode {};", fmt::join(batch.prefill, ","), batch.decode);
    }
    text += '\n';
  }
  return text;
}

std::string sha256_text(const std::string& text) {
  return sha256_hex(std::as_bytes(std::span(text.data(), text.size())));
}

Json os_state(const std::map<std::string, collectors::Reading>& readings) {
  Json out = Json::object();
  for (const auto& [key, reading] : readings) out[key] = reading.value ? Json(*reading.value) : missing(reading.reason);
  return out;
}

Json node_memory(const std::vector<collectors::NodeMemory>& nodes) {
  Json list = Json::array();
  for (const collectors::NodeMemory& node : nodes) {
    const auto get = [&](const char* key) {
      const auto found = node.bytes.find(key);
      return found == node.bytes.end() ? missing(fmt::format("{} is not in this node's meminfo", key))
                                       : Json(found->second);
    };
    list.push_back({{"node", node.node},
                    {"total_bytes", get("MemTotal")},
                    {"free_bytes", get("MemFree")},
                    {"file_bytes", get("FilePages")},
                    {"shmem_bytes", get("Shmem")},
                    {"anon_bytes", get("AnonPages")},
                    {"huge_pages_total", get("HugePages_Total")},
                    {"huge_pages_free", get("HugePages_Free")}});
  }
  return list;
}

Json machine_state(const MachineState& state) {
  const bool read = state.nvml.is_object() && state.nvml.contains("devices");
  return {{"os", os_state(state.os)},
          {"nodes", node_memory(state.nodes)},
          {"devices", read ? state.nvml["devices"] : state.nvml}};
}

// Who the backing was, in the first re-roll that ran the arm.
Json backing_identity(const Record& record, std::size_t arm, const plan::BackingPlace& backing) {
  for (const RerollRecord& reroll : record.rerolls) {
    const auto runs = [&](const std::vector<std::size_t>& list) {
      return std::find(list.begin(), list.end(), arm) != list.end();
    };
    if (!runs(reroll.plan.arms) && !runs(reroll.plan.controls)) continue;
    const auto ranks = parse_snapshots(reroll.storage.snapshots, "after_load");
    return backing_pages(backing, ranks, Json()).value("identity", missing("no snapshot after the load"));
  }
  return missing("the arm has not run");
}

std::string policy_text(const plan::Policy& policy) {
  return policy.text.empty() ? plan::name(policy.kind) : policy.text;
}

Json node_or_null(int node) { return node < 0 ? Json(nullptr) : Json(node); }

// Of each rank; empty where the ranks have no place on this machine.
std::vector<int> device_nodes_of(const plan::Scenario& scenario, const plan::RunLayout& layout,
                                 const placement::Topology& topology) {
  try {
    return supervise::nodes_of(supervise::bind_ranks(scenario, layout, topology, supervise::gpu_nodes_of(scenario)));
  } catch (const Error&) {
    return {};
  }
}

// Nodes of the ranks' devices, ascending, each once: one where they are together, several where a path crosses.
Json nodes_of_ranks(const std::vector<int>& ranks, const std::vector<int>& nodes) {
  std::set<int> found;
  for (const int rank : ranks) {
    const auto r = static_cast<std::size_t>(rank);
    if (r < nodes.size() && nodes[r] >= 0) found.insert(nodes[r]);
  }
  return Json(found);
}

Json nodes_of_groups(const std::vector<std::vector<int>>& groups, const std::vector<int>& nodes) {
  Json list = Json::array();
  for (const std::vector<int>& group : groups) list.push_back(nodes_of_ranks(group, nodes));
  return list;
}

Json rank_map_json(const plan::DeviceSpec& device) {
  return device.rank_devices.empty() ? Json(device.rank_map) : Json(device.rank_devices);
}

}  // namespace

MachineState read_machine_state() {
  const Json nvml = Json::parse(collectors::nvml_state(), nullptr, false);
  return {collectors::read_node_memory(), collectors::read_os_state(),
          nvml.is_discarded() ? missing("NVML's state is not JSON") : nvml};
}

Json context_section(const Record& record) {
  utsname system{};
  ::uname(&system);
  Json environment = Json::object();
  for (const char* name : kEnvironment) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  return {{"date", record.started_utc},
          {"host_name", system.nodename},
          {"executable", link_of("/proc/self/exe")},
          {"num_cpus", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"mhz_per_cpu", mhz_per_cpu()},
          {"cpu_scaling_enabled", scaling_enabled()},
          {"caches", caches()},
          {"load_avg", load_average()},
#ifdef NDEBUG
          {"library_build_type", "release"},
#else
          {"library_build_type", "release with assertions"},
#endif
          {"version", EB_VERSION},
          {"commit", text_or_missing(EB_COMMIT, "the program was not built in a git checkout")},
          {"command_line", record.command_line},
          {"instrument", record.instrument},
          {"env", environment}};
}

Json topology_section(const placement::Topology& topology) {
  Json nodes = Json::array();
  for (const placement::NumaNode& node : topology.nodes) {
    nodes.push_back({{"node", node.id}, {"bytes", node.bytes}, {"cpus", node.cpus}, {"allowed", node.allowed}});
  }
  return {{"file", topology.hwloc_xml.empty() ? missing("hwloc gave no XML") : Json("topology.xml")},
          {"numa_nodes", nodes},
          {"distances", topology.distances},
          {"allowed_cpus", topology.allowed_cpus}};
}

Json effective_section(const Record& record) {
  Json list = Json::array();
  for (std::size_t a = 0; a < record.plan->arms.size(); ++a) {
    const plan::Scenario& scenario = record.plan->arms[a].scenario;
    const plan::RunLayout& layout = record.layouts[a];
    const engram::Geometry& geometry = record.geometries[a];
    const plan::BackendKind backend = rank::resolve_backend(scenario.device.backend);
    const Json devices = devices_of(record, a);
    // A GPU has units of its own, which its ranks state.
    const bool unknown = backend == plan::BackendKind::cuda && devices.empty();
    const Json no_units = missing("no rank has stated its device yet");
    const int units = devices.empty() ? scenario.device.cpu_workers : devices[0].value("units", 0);
    Json ranks = Json::array();
    const std::vector<int> nodes = device_nodes_of(scenario, layout, record.topology);
    for (const plan::RankPlace& place : layout.ranks) {
      const auto r = static_cast<std::size_t>(place.rank);
      Json rows = Json::array();
      for (std::size_t t = 0; t < place.shard.rows.size(); ++t) {
        rows.push_back({{"layer", geometry.layers[t].layer},
                        {"first_row", place.shard.rows[t].first},
                        {"rows", place.shard.rows[t].count}});
      }
      ranks.push_back({{"rank", place.rank},
                       {"replica", place.replica},
                       {"tp_rank", place.tp_rank},
                       {"edp_rank", place.edp_rank},
                       {"backing", place.backing},
                       {"backing_leader", place.backing_leader},
                       {"device_node", node_or_null(r < nodes.size() ? nodes[r] : -1)},
                       {"shard", place.shard.index},
                       {"shards", place.shard.shards},
                       {"first_column", place.shard.first_column},
                       {"columns", place.shard.columns},
                       {"padded_columns", place.shard.part - place.shard.columns},
                       {"rows", rows}});
    }
    Json backings = Json::array();
    for (const plan::BackingPlace& backing : layout.backings) {
      backings.push_back({{"backing", backing.index},
                          {"leader", backing.leader},
                          {"readers", backing.readers},
                          {"bytes", backing.bytes},
                          {"node", node_or_null(backing.node)},
                          {"reader_nodes", nodes_of_ranks(backing.readers, nodes)},
                          {"identity", backing_identity(record, a, backing)}});
    }
    list.push_back({{"arm", record.arm_name(a)},
                    {"configured",
                     {{"tp", scenario.parallel.tp},
                      {"dp", scenario.parallel.dp},
                      {"ep", scenario.parallel.ep},
                      {"sequence_parallel", scenario.parallel.sequence_parallel},
                      {"table_mode", plan::name(scenario.parallel.table_mode)},
                      {"backing", plan::name(scenario.storage.backing)},
                      {"policy", policy_text(scenario.storage.policy)},
                      {"copies", plan::name(scenario.storage.copies)},
                      {"rank_map", rank_map_json(scenario.device)},
                      {"submit", plan::name(scenario.prefetch.submit)},
                      {"streams", plan::name(scenario.prefetch.streams)},
                      {"grid_cap", scenario.prefetch.grid_cap.text},
                      {"order", plan::name(scenario.prefetch.order)},
                      {"device_backend", plan::name(scenario.device.backend)}}},
                    {"edp_group_size", layout.edp_group_size},
                    {"tp_groups", layout.tp_groups},
                    {"tp_group_nodes", nodes_of_groups(layout.tp_groups, nodes)},
                    {"edp_groups", layout.edp_groups},
                    {"ep_groups", layout.ep_groups},
                    {"device_backend", plan::name(backend)},
                    {"grid_cap_programs", unknown ? no_units : Json(scenario.prefetch.grid_cap.programs(units))},
                    {"device_units", unknown ? no_units : Json(units)},
                    {"devices", devices},
                    {"wkv_dtype", "bf16"},
                    {"ranks", ranks},
                    {"backings", backings}});
  }
  return list;
}

Json conditions_section(const Record& record) {
  const plan::Scenario& base = record.plan->base;
  utsname system{};
  ::uname(&system);
  std::string shapes;
  for (const plan::Arm& arm : record.plan->arms) shapes += arm.name + "\n" + batch_shapes(arm.scenario);
  Json conditions;
  conditions["scenario_sha256"] = record.plan->sha256;
  conditions["binary_sha256"] = text_or_missing(record.binary_sha256, "the running program cannot be read");
  conditions["reproduced_vllm"] = "0.31.0 db9527a46873454610df6dbedf79a36d6bf1a7f6";
  conditions["content"] = base.storage.checkpoint.empty() ? "synthetic" : "checkpoint";
  conditions["checkpoint_sha256"] = base.storage.checkpoint.empty()
                                        ? missing("synthetic content")
                                        : missing("hashes of checkpoint tensors are not in this version");
  conditions["checkpoint"] =
      base.storage.checkpoint.empty() ? missing("synthetic content") : Json(base.storage.checkpoint);
  conditions["seed"] = base.seed;
  conditions["tokens_sha256"] = hash_of_file(base.workload.tokens.file, "the token model reads no file");
  conditions["token_map_sha256"] = hash_of_file(base.workload.tokens.map, "the token map is the identity");
  conditions["batch_shapes_sha256"] = sha256_text(shapes);
  conditions["replay_sha256"] = missing("workload.kind is not replay");
  const bool scaled = base.model.base.format == engram::RowFormat::e4m3_ue8m0;
  conditions["precision"] = fmt::format("{} rows, bf16 activations and weights", scaled ? "e4m3" : "bf16");
  conditions["graph"] = base.prefetch.graph;
  conditions["kernel"] = fmt::format("{} {}", system.sysname, system.release);
  conditions["machine"] = system.machine;
  add_gpu_conditions(record, conditions);
  conditions["topology_sha256"] =
      record.topology.hwloc_xml.empty() ? missing("hwloc gave no XML") : Json(sha256_text(record.topology.hwloc_xml));
  for (const char* name : {"ipc", "mnt", "cgroup"}) {
    conditions[fmt::format("{}_namespace", name)] =
        text_or_missing(link_of(fmt::format("/proc/self/ns/{}", name).c_str()), "the namespace is not readable");
  }
  conditions["state_before"] = machine_state(record.before);
  conditions["state_after"] = record.after ? machine_state(*record.after) : missing("the run has not ended");
  return conditions;
}

}  // namespace eb::result
