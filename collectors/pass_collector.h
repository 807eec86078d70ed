// What watches the ranks during an observed pass. Such a pass follows the timed one, so a collector may be as dear as
// it must: what it costs is measured, and its times enter no figure.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace eb::collectors {

class PassCollector {
 public:
  virtual ~PassCollector() = default;
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  // It counts by running kernels again: the pass then has no times.
  [[nodiscard]] virtual bool replays_kernels() const noexcept { return false; }
  // `pids` are the ranks' processes. Neither may throw: what cannot be read is null with the reason in the answer.
  virtual void start(std::span<const int> pids) noexcept = 0;
  // What it saw since start(), as a JSON object.
  [[nodiscard]] virtual std::string stop() noexcept = 0;
};

// All collectors of this build, fresh. Whoever adds one adds it here.
[[nodiscard]] std::vector<std::unique_ptr<PassCollector>> pass_collectors();

// Reads /proc/PID/numa_maps of every rank over and over until stop(): how the pages by node change while steps run, and
// what reading them costs the ranks.
[[nodiscard]] std::unique_ptr<PassCollector> numa_maps_collector();

// Traffic of memory controllers, socket links and PCIe while steps run (collectors/counters.h).
[[nodiscard]] std::unique_ptr<PassCollector> counter_collector();

}  // namespace eb::collectors
