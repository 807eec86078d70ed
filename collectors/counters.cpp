#include "collectors/counters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/base/os.h"

namespace eb::collectors {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kNvmlWindowNs = 20'000'000;
constexpr const char* kPcie = "pcie_device";

Json missing(const std::string& reason) { return {{"value", nullptr}, {"reason", reason}}; }

Json sum_json(const TrafficSum& sum) { return sum.bytes ? Json(*sum.bytes) : missing(sum.reason); }

// Of all readings of an object and direction ("": any); nothing where one of them is missing.
TrafficSum sum_of(const std::vector<CounterReading>& readings, const std::string& object,
                  const std::string& direction) {
  TrafficSum sum;
  for (const CounterReading& one : readings) {
    if (one.object != object || (!direction.empty() && one.direction != direction)) continue;
    if (!one.bytes) return {std::nullopt, fmt::format("{}: {}", one.name, one.reason)};
    sum.bytes = sum.bytes.value_or(0) + *one.bytes;
  }
  if (!sum.bytes) sum.reason = fmt::format("no counter of a {} on this machine", object);
  return sum;
}

Json reading_json(const CounterReading& one) {
  const bool rate = one.bytes && one.window_ns > 0;
  return {{"name", one.name},
          {"object", one.object},
          {"direction", one.direction},
          {"package", one.package >= 0 ? Json(one.package) : Json(nullptr)},
          {"nodes", one.nodes},
          {"device_uuid", one.device.empty() ? Json(nullptr) : Json(one.device)},
          {"bytes", one.bytes ? Json(*one.bytes) : missing(one.reason)},
          {"bytes_per_s", rate ? Json(*one.bytes / static_cast<double>(one.window_ns) * 1e9)
                               : missing(one.bytes ? "the window has no length" : one.reason)},
          {"window_us", static_cast<double>(one.window_ns) / 1000.0},
          {"sample_us", one.sampled_ns > 0 ? Json(static_cast<double>(one.sampled_ns) / 1000.0) : Json(nullptr)},
          {"samples", one.sampled_ns > 0 ? Json(one.samples) : Json(nullptr)},
          {"events", one.events},
          {"running_share", one.bytes ? Json(one.running_share) : Json(nullptr)},
          {"source", one.source}};
}

}  // namespace

std::vector<CounterReading> pcie_readings(const std::vector<PcieSampler::Sample>& samples, std::int64_t window_ns,
                                          const std::string& reason) {
  CounterReading reading;
  reading.name = "pcie_received_bytes";
  reading.object = kPcie;
  reading.direction = "received";
  reading.window_ns = window_ns;
  reading.sampled_ns = kNvmlWindowNs;
  reading.source =
      "NVML's PCIe throughput: a rate over 20 ms, read again and again, device after device; its mean stands for the "
      "window. Received: host to device, so rows of a table in host memory are in it.";
  if (samples.empty()) {
    reading.reason = reason;
    return {reading};
  }
  struct Total {
    double received = 0;
    double sent = 0;
    std::int64_t samples = 0;
  };
  std::map<std::string, Total> devices;
  for (const PcieSampler::Sample& sample : samples) {
    Total& total = devices[sample.uuid];
    total.received += static_cast<double>(sample.received_bytes_per_s);
    total.sent += static_cast<double>(sample.sent_bytes_per_s);
    ++total.samples;
  }
  std::vector<CounterReading> readings;
  const double seconds = static_cast<double>(window_ns) / 1e9;
  for (const auto& [uuid, total] : devices) {
    reading.device = uuid;
    reading.samples = total.samples;
    reading.name = "pcie_received_bytes";
    reading.direction = "received";
    reading.bytes = total.received / static_cast<double>(total.samples) * seconds;
    readings.push_back(reading);
    reading.name = "pcie_sent_bytes";
    reading.direction = "sent";
    reading.bytes = total.sent / static_cast<double>(total.samples) * seconds;
    readings.push_back(reading);
  }
  return readings;
}

TrafficSum cross_socket_bytes(const std::vector<CounterReading>& readings) {
  return sum_of(readings, "socket_link", "sent");
}

TrafficSum host_bytes(const std::vector<CounterReading>& readings) {
  const TrafficSum memory = sum_of(readings, "memory_controller", "");
  if (memory.bytes) return memory;
  const TrafficSum pcie = sum_of(readings, kPcie, "");
  if (pcie.bytes) return pcie;
  return {std::nullopt, fmt::format("{}; {}", memory.reason, pcie.reason)};
}

std::string counters_json(const std::vector<CounterReading>& readings) {
  Json list = Json::array();
  for (const CounterReading& one : readings) list.push_back(reading_json(one));
  return Json{{"readings", std::move(list)},
              {"cross_socket_bytes", sum_json(cross_socket_bytes(readings))},
              {"host_bytes", sum_json(host_bytes(readings))}}
      .dump();
}

void TrafficCounters::start() {
  start_ns_ = now_ns();
  pcie_.start();
  uncore_.start();
}

std::vector<CounterReading> TrafficCounters::stop() {
  std::vector<CounterReading> readings = uncore_.stop();
  pcie_.stop();
  const std::int64_t window_ns = now_ns() - start_ns_;
  for (CounterReading& one : pcie_readings(pcie_.samples(), window_ns, pcie_.reason()))
    readings.push_back(std::move(one));
  return readings;
}

}  // namespace eb::collectors
