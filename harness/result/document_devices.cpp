// result.json: the GPUs of a run: who they are, in which state they were, and whether their times count.
#include <algorithm>
#include <map>
#include <set>

#include "harness/base/error.h"
#include "harness/rank/backend_factory.h"
#include "harness/result/record.h"

namespace eb::result {

namespace {

// Reasons that say the device ran slower than it could for a cause outside of the run. A power cap is the device's own
// normal limit under load; it is shown, and does not fail the gate.
constexpr const char* kSlowdowns[] = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"};

std::set<std::string> used_uuids(const Record& record) {
  std::set<std::string> uuids;
  for (const auto& ranks : record.devices) {
    for (const auto& [rank, device] : ranks) {
      const Json uuid = device.value("uuid", Json());
      if (uuid.is_string()) uuids.insert(uuid.get<std::string>());
    }
  }
  return uuids;
}

Json used_devices(const Record& record, const Json& nvml) {
  Json list = Json::array();
  if (!nvml.is_object() || !nvml.contains("devices")) return list;
  const std::set<std::string> used = used_uuids(record);
  for (const Json& device : nvml["devices"]) {
    if (device["uuid"].is_string() && used.contains(device["uuid"].get<std::string>())) list.push_back(device);
  }
  return list;
}

std::string nvml_reason(const Json& nvml) {
  return nvml.is_object() && nvml.contains("reason") ? nvml["reason"].get<std::string>() : "NVML was not read";
}

// One value a device, or the one value that all have.
Json of_devices(const Json& devices, const char* key, const std::string& reason) {
  if (devices.empty()) return missing(reason);
  Json values = Json::array();
  for (const Json& device : devices) values.push_back(device.value(key, missing("not read")));
  const bool same = std::all_of(values.begin(), values.end(), [&](const Json& one) { return one == values[0]; });
  return same ? values[0] : values;
}

// The first text that a rank's device states under `key`.
Json stated(const Record& record, const char* key, const std::string& reason) {
  for (const auto& ranks : record.devices) {
    for (const auto& [rank, device] : ranks) {
      const Json value = device.value(key, Json());
      if (value.is_string()) return value;
    }
  }
  return missing(reason);
}

bool any_rank(const Record& record, const char* flag) {
  return std::any_of(record.devices.begin(), record.devices.end(), [&](const auto& ranks) {
    return std::any_of(ranks.begin(), ranks.end(), [&](const auto& entry) { return entry.second.value(flag, false); });
  });
}

}  // namespace

bool Record::time_sliced() const {
  return std::any_of(devices.begin(), devices.end(), [](const auto& ranks) {
    // A rank knows of others on its device only where they share a collective: those of other groups are found here.
    std::set<std::string> seen;
    return std::any_of(ranks.begin(), ranks.end(), [&](const auto& entry) {
      const Json uuid = entry.second.value("uuid", Json());
      return entry.second.value("time_sliced", false) ||
             (uuid.is_string() && !seen.insert(uuid.template get<std::string>()).second);
    });
  });
}

bool Record::uses_gpu() const {
  return std::any_of(plan->arms.begin(), plan->arms.end(), [](const plan::Arm& arm) {
    return rank::resolve_backend(arm.scenario.device.backend) == plan::BackendKind::cuda;
  });
}

Json devices_of(const Record& record, std::size_t arm) {
  Json list = Json::array();
  if (arm >= record.devices.size()) return list;
  std::map<std::string, int> ranks_on;
  for (const auto& [rank, device] : record.devices[arm]) ++ranks_on[device.value("uuid", Json()).dump()];
  for (const auto& [rank, device] : record.devices[arm]) {
    Json one = {{"rank", rank}};
    one.update(device);
    // A rank knows of others on its device only where they share a collective.
    const Json uuid = device.value("uuid", Json());
    if (uuid.is_string() && ranks_on.at(uuid.dump()) > 1) one["time_sliced"] = true;
    list.push_back(std::move(one));
  }
  return list;
}

void add_gpu_conditions(const Record& record, Json& conditions) {
  const bool gpu = record.uses_gpu();
  const std::string no_gpu = "this run used no GPU";
  const std::string no_nvml = gpu ? nvml_reason(record.before.nvml) : no_gpu;
  const Json& nvml = record.before.nvml;
  const Json before = gpu ? used_devices(record, nvml) : Json::array();
  conditions["driver"] = gpu && nvml.is_object() && nvml.contains("driver") ? nvml["driver"] : missing(no_nvml);
  conditions["cuda"] = gpu ? stated(record, "cuda_runtime", "the device states no version") : missing(no_gpu);
  conditions["nccl"] = gpu ? stated(record, "nccl", "no collective of this run used NCCL") : missing(no_gpu);
  conditions["gpu_clocks"] = of_devices(before, "sm_clock_mhz", no_nvml);
  conditions["throttle_reasons"] = of_devices(before, "throttle_reasons", no_nvml);
  conditions["link_generation"] = of_devices(before, "link_generation", no_nvml);
  conditions["link_width"] = of_devices(before, "link_width", no_nvml);
  conditions["link_kind"] =
      gpu ? missing("NVML's link generation and width are PCIe's; a C2C link is not told apart") : missing(no_gpu);
  Json gates = Json::array();
  for (const GateRecord& one : record.gates) {
    gates.push_back({{"reroll", one.reroll}, {"block", one.block}, {"devices", one.devices}, {"failed", one.failed}});
  }
  conditions["gates"] =
      gpu && !gates.empty() ? gates : missing(gpu ? "no block was done, or NVML gave nothing" : no_gpu);
  conditions["pcie_throughput"] =
      record.pcie_samples.empty() ? missing(gpu ? "NVML gave no sample during a warm-up" : no_gpu)
                                  : Json({{"window_ms", 20}, {"during", "warm-up"}, {"samples", record.pcie_samples}});
}

GateRecord judge_gates(const Record& record, int reroll, int block, const Json& nvml) {
  GateRecord gate;
  gate.reroll = reroll;
  gate.block = block;
  gate.devices = used_devices(record, nvml);
  for (const Json& device : gate.devices) {
    const std::string name = fmt::format("device {}", device.value("index", -1));
    for (const Json& reason : device["throttle_reasons"]) {
      if (!reason.is_string()) continue;
      const auto text = reason.get<std::string>();
      if (std::find(std::begin(kSlowdowns), std::end(kSlowdowns), text) != std::end(kSlowdowns)) {
        gate.failed.push_back(fmt::format("{}: {}", name, text));
      }
    }
    if (device["processes"].is_array()) {
      for (const Json& process : device["processes"]) {
        if (process.value("own", true)) continue;
        gate.failed.push_back(fmt::format("{}: process {} runs there too", name, process.value("pid", 0)));
      }
    }
    if (record.gates.empty()) continue;
    for (const Json& first : record.gates.front().devices) {
      if (first["uuid"] != device["uuid"]) continue;
      for (const char* key : {"link_generation", "link_width"}) {
        if (first[key] != device[key]) {
          gate.failed.push_back(
              fmt::format("{}: {} changed from {} to {}", name, key, first[key].dump(), device[key].dump()));
        }
      }
    }
  }
  return gate;
}

std::vector<Warning> device_warnings(const Record& record) {
  std::vector<Warning> list;
  if (record.time_sliced()) {
    const bool staged = any_rank(record, "host_staged");
    list.push_back({"time_sliced",
                    fmt::format("Ranks share a GPU: their kernels take turns{}, so no timing verdict is given.",
                                staged ? " and messages among them go through host memory" : ""),
                    "Use as many GPUs as ranks, or take this run for its checks alone.",
                    {{"host_staged", staged}}});
  }
  Json failed = Json::array();
  for (const GateRecord& gate : record.gates) {
    for (const std::string& text : gate.failed) {
      failed.push_back({{"reroll", gate.reroll}, {"block", gate.block}, {"text", text}});
    }
  }
  if (!failed.empty()) {
    list.push_back(
        {"gate_failed",
         fmt::format("Gates failed after {} block(s), first: {}.", failed.size(), failed[0]["text"].get<std::string>()),
         "See conditions.gates; repeat on a quiet, cool device.",
         {{"failed", failed}}});
  }
  return list;
}

}  // namespace eb::result
