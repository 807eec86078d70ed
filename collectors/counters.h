// All traffic counters of a window: perf's uncore counters and NVML's PCIe figures. As JSON (docs/collectors.md).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectors/nvml.h"
#include "collectors/uncore.h"

namespace eb::collectors {

// Pure: NVML's samples as readings, two a device: received (host to device: table rows) and sent. Rates of samples of
// 20 ms stand for the window. No samples: one reading without a device, null with `reason`.
[[nodiscard]] std::vector<CounterReading> pcie_readings(const std::vector<PcieSampler::Sample>& samples,
                                                        std::int64_t window_ns, const std::string& reason);

// Sums over sockets and devices that a verdict may use; empty where a part is missing, `reason` says which.
struct TrafficSum {
  std::optional<double> bytes;
  std::string reason;
};
// What sockets sent to each other.
[[nodiscard]] TrafficSum cross_socket_bytes(const std::vector<CounterReading>& readings);
// What memory controllers read and wrote; where they cannot be counted, what devices moved over PCIe (NVML).
[[nodiscard]] TrafficSum host_bytes(const std::vector<CounterReading>& readings);

// {"readings": [...], "cross_socket_bytes": ..., "host_bytes": ...}.
[[nodiscard]] std::string counters_json(const std::vector<CounterReading>& readings);

// start() and stop() around a window. Counters are opened once.
class TrafficCounters {
 public:
  void start();
  [[nodiscard]] std::vector<CounterReading> stop();

 private:
  UncoreCounters uncore_;
  PcieSampler pcie_;
  std::int64_t start_ns_ = 0;
};

}  // namespace eb::collectors
