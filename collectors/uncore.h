// Counters outside the cores (perf's uncore): what memory controllers, links between sockets and PCIe carried in a
// window, one reading a counter and socket. A reading that cannot be made is null with the reason, never 0.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace eb::collectors {

struct PerfEvent {
  std::uint32_t type = 0;  // of the PMU
  std::uint64_t config[3] = {0, 0, 0};
  int cpu = 0;
};
struct PerfValue {
  std::uint64_t count = 0;
  std::uint64_t enabled_ns = 0;
  std::uint64_t running_ns = 0;  // less where the kernel takes events in turns
};

// The system calls, so that tests stand in for them.
class PerfSystem {
 public:
  virtual ~PerfSystem() = default;
  // A descriptor of a disabled counter, or -errno.
  virtual int open(const PerfEvent& event) = 0;
  virtual void enable(int fd) = 0;  // from 0
  virtual void disable(int fd) = 0;
  virtual bool read(int fd, PerfValue& value) = 0;
  virtual void close(int fd) = 0;
};
[[nodiscard]] std::shared_ptr<PerfSystem> linux_perf();

struct CounterReading {
  std::string name;        // "memory_read_bytes"
  std::string object;      // memory_controller, socket_link, io_stack, pcie_device
  std::string direction;   // read, write, both; sent, received
  int package = -1;        // socket; -1: not of one
  std::vector<int> nodes;  // NUMA nodes of that socket; several where it is cut into some
  std::string device;      // UUID of a GPU; empty: not of one
  std::optional<double> bytes;
  std::string reason;           // why `bytes` is not known
  std::int64_t window_ns = 0;   // from start() to stop()
  std::int64_t sampled_ns = 0;  // where only samples of the window were seen: how long one is
  std::int64_t samples = 0;
  int events = 0;            // that were added up
  double running_share = 1;  // the least share of the window that one of them counted: below 1 an estimate
  std::string source;
};

struct CounterGroup {  // one reading and its counters
  CounterReading reading;
  double bytes_per_count = 0;
  std::vector<int> fds;
};

// Counts from start() to stop(). Counters run for the whole machine: other programs' traffic is in them.
class UncoreCounters {
 public:
  // Finds the CPU's recipe and its PMUs and opens all counters, disabled. `root` stands before /proc and /sys, for
  // tests. Never throws for a counter: its reading says why there is none.
  explicit UncoreCounters(const std::string& root = "", std::shared_ptr<PerfSystem> perf = linux_perf());
  ~UncoreCounters();
  UncoreCounters(const UncoreCounters&) = delete;
  UncoreCounters& operator=(const UncoreCounters&) = delete;

  void start();
  [[nodiscard]] std::vector<CounterReading> stop();

 private:
  void close_all() noexcept;

  std::shared_ptr<PerfSystem> perf_;
  std::vector<CounterGroup> groups_;
  std::int64_t start_ns_ = 0;
};

}  // namespace eb::collectors
