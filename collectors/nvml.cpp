#include "collectors/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/symbols.h"

namespace eb::collectors {

namespace {

using Json = nlohmann::ordered_json;

// The few declarations of NVML's C interface that are used, as its documentation states them.
using Device = void*;
using Result = int;  // 0: success
constexpr unsigned kUuidBytes = 96;
constexpr unsigned kNameBytes = 96;
constexpr unsigned kVersionBytes = 80;
constexpr int kClockSm = 1;
constexpr int kClockMemory = 2;
constexpr int kTemperatureGpu = 0;
constexpr int kPcieSent = 0;
constexpr int kPcieReceived = 1;
constexpr std::size_t kMaxSamples = 400;

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

struct Api {
  Result (*init)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*driver_version)(char*, unsigned) = nullptr;
  Result (*count)(unsigned*) = nullptr;
  Result (*handle)(unsigned, Device*) = nullptr;
  Result (*name)(Device, char*, unsigned) = nullptr;
  Result (*uuid)(Device, char*, unsigned) = nullptr;
  Result (*pci)(Device, PciInfo*) = nullptr;
  Result (*clock)(Device, int, unsigned*) = nullptr;
  Result (*max_clock)(Device, int, unsigned*) = nullptr;
  Result (*throttle)(Device, unsigned long long*) = nullptr;
  Result (*link_generation)(Device, unsigned*) = nullptr;
  Result (*max_link_generation)(Device, unsigned*) = nullptr;
  Result (*link_width)(Device, unsigned*) = nullptr;
  Result (*max_link_width)(Device, unsigned*) = nullptr;
  Result (*temperature)(Device, int, unsigned*) = nullptr;
  Result (*power)(Device, unsigned*) = nullptr;
  Result (*power_limit)(Device, unsigned*) = nullptr;
  Result (*memory)(Device, Memory*) = nullptr;
  Result (*ecc)(Device, int*, int*) = nullptr;
  Result (*mig)(Device, unsigned*, unsigned*) = nullptr;
  Result (*processes)(Device, unsigned*, Process*) = nullptr;
  Result (*pcie)(Device, int, unsigned*) = nullptr;
  std::string reason;  // why nothing can be read; empty: ready
};

template <typename Function>
void resolve(void* library, Function& function, const char* name, const char* other = nullptr) {
  if (!find_symbol(library, name, function) && other != nullptr) (void)find_symbol(library, other, function);
}

Api load() {
  Api api;
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    api.reason = "no NVML (libnvidia-ml.so.1) on this machine";
    return api;
  }
  resolve(library, api.init, "nvmlInit_v2");
  resolve(library, api.error_string, "nvmlErrorString");
  resolve(library, api.driver_version, "nvmlSystemGetDriverVersion");
  resolve(library, api.count, "nvmlDeviceGetCount_v2");
  resolve(library, api.handle, "nvmlDeviceGetHandleByIndex_v2");
  resolve(library, api.name, "nvmlDeviceGetName");
  resolve(library, api.uuid, "nvmlDeviceGetUUID");
  resolve(library, api.pci, "nvmlDeviceGetPciInfo_v3");
  resolve(library, api.clock, "nvmlDeviceGetClockInfo");
  resolve(library, api.max_clock, "nvmlDeviceGetMaxClockInfo");
  resolve(library, api.throttle, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons");
  resolve(library, api.link_generation, "nvmlDeviceGetCurrPcieLinkGeneration");
  resolve(library, api.max_link_generation, "nvmlDeviceGetMaxPcieLinkGeneration");
  resolve(library, api.link_width, "nvmlDeviceGetCurrPcieLinkWidth");
  resolve(library, api.max_link_width, "nvmlDeviceGetMaxPcieLinkWidth");
  resolve(library, api.temperature, "nvmlDeviceGetTemperature");
  resolve(library, api.power, "nvmlDeviceGetPowerUsage");
  resolve(library, api.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  resolve(library, api.memory, "nvmlDeviceGetMemoryInfo");
  resolve(library, api.ecc, "nvmlDeviceGetEccMode");
  resolve(library, api.mig, "nvmlDeviceGetMigMode");
  resolve(library, api.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  resolve(library, api.pcie, "nvmlDeviceGetPcieThroughput");
  if (api.init == nullptr || api.error_string == nullptr || api.count == nullptr || api.handle == nullptr) {
    api.reason = "libnvidia-ml.so.1 lacks the functions that this program uses";
  } else if (const Result result = api.init(); result != 0) {
    api.reason = fmt::format("NVML does not start: {}", api.error_string(result));
  }
  return api;
}

// Loaded once, never shut down: NVML counts its users, and the process's end gives everything back.
const Api& nvml() {
  static const Api api = load();
  return api;
}

Json missing(const std::string& reason) { return {{"value", nullptr}, {"reason", reason}}; }

// What `function(device, arguments..., &value)` gives, by `use`; else why it does not.
template <typename Value, typename Function, typename Use, typename... Arguments>
Json get(Function function, Use use, Arguments... arguments) {
  if (function == nullptr) return missing("this NVML does not have it");
  Value value{};
  const Result result = function(arguments..., &value);
  if (result != 0) return missing(nvml().error_string(result));
  return use(value);
}

template <typename Function, typename... Arguments>
Json number(Function function, Arguments... arguments) {
  return get<unsigned>(
      function, [](unsigned value) { return Json(value); }, arguments...);
}

template <typename Function>
std::optional<std::string> text(Function function, Device device, unsigned bytes) {
  std::vector<char> buffer(bytes);
  if (function == nullptr || function(device, buffer.data(), bytes) != 0) return std::nullopt;
  return std::string(buffer.data());
}

Json throttle_reasons(unsigned long long bits) {
  constexpr std::array<std::pair<unsigned long long, const char*>, 9> kNames = {{{0x1, "gpu_idle"},
                                                                                 {0x2, "application_clocks"},
                                                                                 {0x4, "sw_power_cap"},
                                                                                 {0x8, "hw_slowdown"},
                                                                                 {0x10, "sync_boost"},
                                                                                 {0x20, "sw_thermal_slowdown"},
                                                                                 {0x40, "hw_thermal_slowdown"},
                                                                                 {0x80, "hw_power_brake"},
                                                                                 {0x100, "display_clock"}}};
  Json names = Json::array();
  for (const auto& [bit, name] : kNames) {
    if ((bits & bit) != 0) names.push_back(name);
    bits &= ~bit;
  }
  if (bits != 0) names.push_back(fmt::format("0x{:x}", bits));
  return names;
}

// Field 4 of /proc/PID/stat; 0 where there is no such process here.
int parent_of(int pid) {
  try {
    const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
    const std::size_t name_end = stat.rfind(')');
    return name_end == std::string::npos ? 0 : std::atoi(stat.c_str() + name_end + 3);
  } catch (const Error&) {
    return 0;
  }
}

bool is_own(int pid) {
  for (int i = 0; pid > 1 && i < 64; ++i, pid = parent_of(pid)) {
    if (pid == ::getpid()) return true;
  }
  return false;
}

Json processes(Device device) {
  if (nvml().processes == nullptr) return missing("this NVML does not have it");
  std::vector<Process> list(256);
  auto count = static_cast<unsigned>(list.size());
  if (const Result result = nvml().processes(device, &count, list.data()); result != 0) {
    return missing(nvml().error_string(result));
  }
  Json out = Json::array();
  for (unsigned i = 0; i < count && i < list.size(); ++i) {
    const bool known = list[i].used_bytes != ~0ULL;
    out.push_back({{"pid", list[i].pid},
                   {"used_bytes", known ? Json(list[i].used_bytes) : missing("not available")},
                   {"own", is_own(static_cast<int>(list[i].pid))}});
  }
  return out;
}

Json device_state(unsigned index, Device device) {
  const Api& api = nvml();
  Json out;
  out["index"] = index;
  const auto uuid = text(api.uuid, device, kUuidBytes);
  const auto name = text(api.name, device, kNameBytes);
  out["uuid"] = uuid ? Json(*uuid) : missing("not available");
  out["name"] = name ? Json(*name) : missing("not available");
  out["bus_id"] = get<PciInfo>(
      api.pci,
      [](const PciInfo& info) {
        return Json(fmt::format("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device));
      },
      device);
  out["sm_clock_mhz"] = number(api.clock, device, kClockSm);
  out["sm_clock_max_mhz"] = number(api.max_clock, device, kClockSm);
  out["memory_clock_mhz"] = number(api.clock, device, kClockMemory);
  out["throttle_reasons"] = get<unsigned long long>(
      api.throttle, [](unsigned long long bits) { return throttle_reasons(bits); }, device);
  out["link_generation"] = number(api.link_generation, device);
  out["link_generation_max"] = number(api.max_link_generation, device);
  out["link_width"] = number(api.link_width, device);
  out["link_width_max"] = number(api.max_link_width, device);
  out["temperature_c"] = number(api.temperature, device, kTemperatureGpu);
  out["power_mw"] = number(api.power, device);
  out["power_limit_mw"] = number(api.power_limit, device);
  const Json memory = get<Memory>(
      api.memory,
      [](const Memory& m) {
        return Json{{"total", m.total}, {"used", m.used}};
      },
      device);
  out["memory_total_bytes"] = memory.contains("total") ? memory["total"] : memory;
  out["memory_used_bytes"] = memory.contains("used") ? memory["used"] : memory;
  int ecc = 0;
  int ecc_pending = 0;
  out["ecc"] =
      api.ecc != nullptr && api.ecc(device, &ecc, &ecc_pending) == 0 ? Json(ecc != 0) : missing("not available");
  unsigned mig = 0;
  unsigned mig_pending = 0;
  out["mig"] =
      api.mig != nullptr && api.mig(device, &mig, &mig_pending) == 0 ? Json(mig != 0) : missing("not available");
  out["processes"] = processes(device);
  return out;
}

}  // namespace

std::string nvml_state() {
  const Api& api = nvml();
  if (!api.reason.empty()) return missing(api.reason).dump();
  unsigned count = 0;
  if (const Result result = api.count(&count); result != 0) return missing(api.error_string(result)).dump();
  Json devices = Json::array();
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (const Result result = api.handle(i, &device); result == 0) {
      devices.push_back(device_state(i, device));
    } else {
      devices.push_back({{"index", i}, {"uuid", missing(api.error_string(result))}});
    }
  }
  std::array<char, kVersionBytes> driver{};
  const bool known = api.driver_version != nullptr && api.driver_version(driver.data(), kVersionBytes) == 0;
  return Json{{"driver", known ? Json(driver.data()) : missing("not available")}, {"devices", devices}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

void PcieSampler::start() {
  stop();
  samples_.clear();
  const Api& api = nvml();
  unsigned count = 0;
  reason_ = api.reason;
  if (!reason_.empty()) return;
  if (api.pcie == nullptr || api.count(&count) != 0 || count == 0) {
    reason_ = api.pcie == nullptr ? "this NVML gives no PCIe throughput" : "NVML lists no device";
    return;
  }
  reason_ = "the window was over before NVML's first sample of 20 ms";
  running_ = true;
  thread_ = std::thread([this, &api, count] {
    while (running_ && samples_.size() < kMaxSamples) {
      for (unsigned i = 0; i < count && running_; ++i) {
        Device device = nullptr;
        unsigned sent = 0;  // KB/s
        unsigned received = 0;
        Result result = api.handle(i, &device);
        if (result == 0) result = api.pcie(device, kPcieSent, &sent);
        if (result == 0) result = api.pcie(device, kPcieReceived, &received);
        if (result != 0) {
          reason_ = fmt::format("NVML's PCIe throughput of device {}: {}", i, api.error_string(result));
          running_ = false;
          break;
        }
        samples_.push_back({text(api.uuid, device, kUuidBytes).value_or(""), std::int64_t{sent} * 1000,
                            std::int64_t{received} * 1000});
      }
    }
  });
}

void PcieSampler::stop() noexcept {
  running_ = false;
  if (thread_.joinable()) thread_.join();
}

}  // namespace eb::collectors
