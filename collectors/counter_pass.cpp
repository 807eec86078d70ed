// Traffic counters as a collector of the observed pass: uncore and PCIe over each of its slots.
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "collectors/counters.h"
#include "collectors/pass_collector.h"

namespace eb::collectors {

namespace {

class CounterCollector final : public PassCollector {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "counters"; }

  void start(std::span<const int> /*pids*/) noexcept override {
    try {
      counters_.emplace();
      counters_->start();
    } catch (const std::exception& error) {
      counters_.reset();
      reason_ = error.what();
    }
  }

  std::string stop() noexcept override {
    try {
      if (counters_) return counters_json(counters_->stop());
      const nlohmann::ordered_json missing = {{"value", nullptr}, {"reason", reason_}};
      return nlohmann::ordered_json{
          {"readings", nlohmann::ordered_json::array()}, {"cross_socket_bytes", missing}, {"host_bytes", missing}}
          .dump();
    } catch (const std::exception&) {
      return "{}";
    }
  }

 private:
  std::optional<TrafficCounters> counters_;
  std::string reason_ = "the counters were not started";
};

}  // namespace

std::unique_ptr<PassCollector> counter_collector() { return std::make_unique<CounterCollector>(); }

}  // namespace eb::collectors
