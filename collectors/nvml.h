// What NVIDIA's management library says of the GPUs: state before, after and between blocks, and PCIe throughput. The
// library is loaded at run time (libnvidia-ml.so.1); nothing is ever set through it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace eb::collectors {

// JSON text: {"driver", "devices": [{"index", "uuid", "bus_id", "name", clocks, throttle reasons, link, temperature,
// memory, ECC, MIG, processes}]}, or {"value": null, "reason"} where the library, the driver or a device is missing. A
// field that the device does not give is {"value": null, "reason"}. Each process says whether it is one of this one's
// descendants. Thread-safe. Takes some ms a device.
[[nodiscard]] std::string nvml_state();

// PCIe throughput of every device, read one after the other by a thread until stop(). NVML counts over a window of
// 20 ms, which each read takes. Bytes a second of the whole device: other programs' traffic is in it.
class PcieSampler {
 public:
  PcieSampler() = default;
  ~PcieSampler() { stop(); }
  PcieSampler(const PcieSampler&) = delete;
  PcieSampler& operator=(const PcieSampler&) = delete;
  // Nothing starts where there is no NVML.
  void start();
  void stop() noexcept;

  struct Sample {
    std::string uuid;
    std::int64_t sent_bytes_per_s = 0;      // by the device
    std::int64_t received_bytes_per_s = 0;  // by the device: table rows come this way
  };
  // After stop().
  [[nodiscard]] const std::vector<Sample>& samples() const noexcept { return samples_; }
  // After stop(): why there are no samples, or no more of them.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  std::atomic<bool> running_{false};
  std::vector<Sample> samples_;
  std::string reason_;
  std::thread thread_;
};

}  // namespace eb::collectors
