#include "collectors/observation.h"

#include <ctime>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "placement/topology.h"

namespace eb::collectors {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kSchemaVersion = 1;

Json missing(const std::string& reason) { return {{"value", nullptr}, {"reason", reason}}; }

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

template <typename Value>
Json known(const std::optional<Value>& value, const std::string& reason) {
  return value ? Json(*value) : missing(reason);
}

std::string why_unread(const LiveProcess& process, const std::string& file) {
  for (const auto& [name, why] : process.unread) {
    if (name == file) return fmt::format("/proc/{}/{}: {}", process.pid, file, why);
  }
  return fmt::format("/proc/{}/{} does not state it", process.pid, file);
}

Json device_json(const DeviceHold& device) {
  return {
      {"minor", device.minor >= 0 ? Json(device.minor) : missing("the driver's /proc does not list this device")},
      {"bus_id", device.bus_id.empty() ? missing("the driver's /proc does not list this device") : Json(device.bus_id)},
      {"node", device.node >= 0 ? Json(device.node) : missing("the system states no NUMA node for this device")},
      {"source", device.source}};
}

Json process_json(const LiveProcess& process, const LiveMachine& machine) {
  Json devices = Json::array();
  for (const DeviceHold& device : process.devices) devices.push_back(device_json(device));
  Json unread = Json::array();
  for (const auto& [file, why] : process.unread) unread.push_back({{"file", file}, {"reason", why}});
  const auto text = [](const std::string& value, const char* key) {
    return value.empty() ? missing(fmt::format("/proc/PID/status has no {}", key)) : Json(value);
  };
  return {{"pid", process.pid},
          {"program", process.program},
          {"user_id", known(process.user_id, "status has no Uid")},
          {"threads", known(process.threads, "status has no Threads")},
          {"cpus", text(process.cpus, "Cpus_allowed_list")},
          {"cpu_nodes", nodes_of_cpus(process.cpus, machine)},
          {"mems_allowed", text(process.mems_allowed, "Mems_allowed_list")},
          {"task_policy", known(process.task_policy.value, process.task_policy.reason)},
          {"devices", std::move(devices)},
          {"rss_bytes", known(process.rss_bytes, why_unread(process, "smaps"))},
          {"pss_bytes", known(process.pss_bytes, why_unread(process, "smaps"))},
          {"read_ms",
           {{"smaps", static_cast<double>(process.smaps_ns) / 1e6},
            {"numa_maps", static_cast<double>(process.numa_maps_ns) / 1e6}}},
          {"unread", std::move(unread)}};
}

// `counted`: a LiveMapping or TablePages.
template <typename Counted>
Json node_pages(const LiveProcess& process, const Counted& counted) {
  if (counted.page_bytes == 0) return missing(why_unread(process, "numa_maps"));
  Json pages = Json::object();
  for (const auto& [node, bytes] : counted.node_bytes) pages[fmt::format("{}", node)] = bytes / counted.page_bytes;
  return pages;
}

Json reader_json(const LiveProcess& process, const LiveMapping& mapping, const TablePages& pages) {
  const bool smaps = process.rss_bytes.has_value();
  return {
      {"pid", process.pid},
      {"address", fmt::format("{:#x}", mapping.address)},
      {"mapped_bytes", mapping.bytes},
      {"pieces", mapping.pieces},
      {"node_pages", node_pages(process, mapping)},
      {"policies", mapping.policies},
      {"rss_bytes", smaps ? Json(mapping.rss_bytes + mapping.pool_bytes) : missing(why_unread(process, "smaps"))},
      {"pss_bytes", !smaps              ? missing(why_unread(process, "smaps"))
                    : mapping.pss_bytes ? Json(*mapping.pss_bytes)
                                        : missing("the kernel gives no PSS of huge page pools")},
      {"huge_pool_bytes", mapping.pool_bytes},
      {"local_page_share", known(local_share(process, pages),
                                 "needs one device with a known NUMA node, and pages: see devices of this process")}};
}

Json table_json(const Observation& look, const LiveTable& table) {
  const LiveProcess& fullest_in = look.processes[table.fullest.process];
  const LiveMapping& fullest = mapping_of(look.processes, table.fullest);
  const TablePages& pages = table.pages;
  const bool paged = pages.page_bytes != 0;
  Json counted = Json::array();
  for (const std::size_t reader : pages.readers) counted.push_back(look.processes[table.readers[reader].process].pid);
  Json readers = Json::array();
  for (const LiveReader& reader : table.readers) {
    readers.push_back(reader_json(look.processes[reader.process], mapping_of(look.processes, reader), pages));
  }
  const std::string by = huge_pages_asked(fullest, look.machine);
  const bool backed = table.kind == MappingKind::shared || table.kind == MappingKind::file;
  return {{"file", table.file.empty() ? Json(nullptr) : Json(table.file)},
          {"kind", name(table.kind)},
          {"device", backed ? Json(table.device) : Json(nullptr)},
          {"inode", backed ? Json(table.inode) : Json(nullptr)},
          {"bytes", pages.bytes},
          {"counted_from_pids", std::move(counted)},
          {"page_bytes", paged ? Json(pages.page_bytes) : missing(why_unread(fullest_in, "numa_maps"))},
          {"node_pages", node_pages(fullest_in, pages)},
          {"present_bytes", paged ? Json(pages.present_bytes()) : missing(why_unread(fullest_in, "numa_maps"))},
          {"uncounted_bytes", known(pages.uncounted_bytes, "the kernel gives no PSS of these pages")},
          {"huge_pages",
           {{"asked_by", by.empty() ? Json(nullptr) : Json(by)}, {"mapped_bytes", fullest.huge_mapped_bytes}}},
          {"readers", std::move(readers)}};
}

}  // namespace

LiveMachine read_live_machine() {
  LiveMachine machine;
  for (const placement::NumaNode& node : placement::read_topology(placement::Devices::skip).nodes) {
    machine.node_cpus[node.id] = node.cpus;
  }
  const auto state = read_os_state();
  machine.thp_anon = state.at("thp_anon").value.value_or("");
  machine.thp_shmem = state.at("thp_shmem").value.value_or("");
  return machine;
}

Observation observe(const std::vector<int>& pids, const TableFilter& filter, const LiveMachine& machine,
                    const DeviceUsers& users, const std::string& root) {
  Observation look;
  look.time = utc_now();
  look.machine = machine;
  for (const int pid : pids) {
    LiveProcess process = look_at_process(pid, filter, users, root);
    (process.code == LookCode::tables ? look.processes : look.unobserved).push_back(std::move(process));
  }
  look.tables = group_tables(look.processes);
  look.findings = find_in(look.processes, look.tables, machine);
  return look;
}

std::string observation_json(const Observation& look, int indent) {
  Json processes = Json::array();
  for (const LiveProcess& process : look.processes) processes.push_back(process_json(process, look.machine));
  Json unobserved = Json::array();
  for (const LiveProcess& process : look.unobserved) {
    unobserved.push_back({{"pid", process.pid}, {"code", name(process.code)}, {"text", process.text}});
  }
  Json tables = Json::array();
  for (const LiveTable& table : look.tables) tables.push_back(table_json(look, table));
  Json findings = Json::array();
  for (const LiveFinding& finding : look.findings) {
    findings.push_back({{"code", finding.code},
                        {"table", finding.table >= 0 ? Json(finding.table) : Json(nullptr)},
                        {"pids", finding.pids},
                        {"text", finding.text}});
  }
  Json nodes = Json::array();
  for (const auto& [node, cpus] : look.machine.node_cpus) nodes.push_back({{"node", node}, {"cpus", cpus}});
  const auto setting = [](const std::string& value) {
    return value.empty() ? missing("this kernel states no such setting") : Json(value);
  };
  return Json{{"schema", "engram-bench observation"},
              {"schema_version", kSchemaVersion},
              {"time", look.time},
              {"machine",
               {{"nodes", std::move(nodes)},
                {"thp_anon", setting(look.machine.thp_anon)},
                {"thp_shmem", setting(look.machine.thp_shmem)}}},
              {"processes", std::move(processes)},
              {"tables", std::move(tables)},
              {"findings", std::move(findings)},
              {"unobserved", std::move(unobserved)}}
      .dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace eb::collectors
