#include "collectors/pass_collector.h"

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "collectors/process_maps.h"

namespace eb::collectors {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr auto kInterval = std::chrono::milliseconds(20);

class NumaMapsCollector final : public PassCollector {
 public:
  ~NumaMapsCollector() override { end(); }
  const char* name() const noexcept override { return "numa_maps"; }

  void start(std::span<const int> pids) noexcept override {
    try {
      pids_.assign(pids.begin(), pids.end());
      thread_ = std::thread([this] { watch(); });
    } catch (const std::exception& error) {
      reason_ = error.what();
    }
  }

  std::string stop() noexcept override {
    end();
    try {
      if (passes_ == 0) {
        const std::string why = reason_.empty() ? "no pass over the ranks was done" : reason_;
        return Json{{"node_pages", {{"value", nullptr}, {"reason", why}}}}.dump();
      }
      Json pages = Json::object();
      for (const auto& [node, count] : last_) pages[std::to_string(node)] = count;
      return Json{{"passes", passes_},
                  {"interval_ms", kInterval.count()},
                  {"read_us_per_pass", read_us_ / static_cast<double>(passes_)},
                  {"passes_in_which_pages_moved", moved_},
                  {"node_pages", pages}}
          .dump();
    } catch (const std::exception&) {
      return "{}";
    }
  }

 private:
  void end() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  // Pages by node, all mappings of all ranks; a shared page counts in each rank that maps it.
  void read_all() {
    const Clock::time_point begin = Clock::now();
    std::map<int, std::int64_t> pages;
    for (const int pid : pids_) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/numa_maps");
      std::stringstream text;
      text << file.rdbuf();
      if (text.str().empty()) {
        reason_ = "numa_maps of process " + std::to_string(pid) + " cannot be read";
        return;
      }
      std::int64_t skipped = 0;
      for (const NumaMapsEntry& entry : parse_numa_maps(text.str(), &skipped)) {
        for (const auto& [node, count] : entry.node_pages) pages[node] += count;
      }
    }
    read_us_ += std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    if (passes_ > 0 && pages != last_) ++moved_;
    ++passes_;
    last_ = std::move(pages);
  }

  void watch() noexcept {
    try {
      std::unique_lock lock(mutex_);
      while (!stop_ && reason_.empty()) {
        lock.unlock();
        read_all();
        lock.lock();
        wake_.wait_for(lock, kInterval, [this] { return stop_; });
      }
    } catch (const std::exception& error) {
      reason_ = error.what();
    }
  }

  std::vector<int> pids_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  // Of the thread, until it is joined.
  std::map<int, std::int64_t> last_;
  std::int64_t passes_ = 0;
  std::int64_t moved_ = 0;
  double read_us_ = 0;
  std::string reason_;
};

}  // namespace

std::unique_ptr<PassCollector> numa_maps_collector() { return std::make_unique<NumaMapsCollector>(); }

std::vector<std::unique_ptr<PassCollector>> pass_collectors() {
  std::vector<std::unique_ptr<PassCollector>> all;
  all.push_back(numa_maps_collector());
  all.push_back(counter_collector());
  return all;
}

}  // namespace eb::collectors
