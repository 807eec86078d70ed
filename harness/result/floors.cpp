#include "harness/result/floors.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <span>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"
#include "harness/base/unique_fd.h"
#include "harness/rank/backend_factory.h"

namespace eb::result {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSchema = "engram-bench/floor";

std::string hash(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text.data(), text.size()))); }

std::string cpu_model() {
  try {
    const std::string text = read_file("/proc/cpuinfo");
    for (const char* key : {"model name", "Processor", "CPU part"}) {
      const std::size_t at = text.find(key);
      if (at == std::string::npos) continue;
      const std::size_t from = text.find(':', at) + 1;
      return text.substr(from, text.find('\n', from) - from);
    }
  } catch (const Error&) {
  }
  return "unknown";
}

std::string file_of(const std::string& folder, const FloorKey& key) {
  return fmt::format("{}/floors/{}-{}-{}.json", folder, key.fingerprint.substr(0, 16), key.scenario.substr(0, 16),
                     key.one_allocation ? "together" : "apart");
}

Json read(const std::string& file) {
  std::error_code error;  // a folder that may not be entered has no floor for this user, and is no reason not to run
  if (!fs::exists(file, error)) return Json();
  Json json = Json::parse(read_file(file), nullptr, false);
  if (!json.is_object() || json.value("schema", "") != kSchema || !json.contains("experiments")) {
    fail(Exit::bad_data, "{}: not a file of A/A pairs; remove it and run engram-bench selftest again", file);
  }
  return json;
}

void write_whole(const std::string& file, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", file, ::getpid());
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) fail_errno(errno, temporary);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd.get(), text.data() + done, text.size() - done);
    if (n < 0) {
      const int error = errno;
      ::unlink(temporary.c_str());
      fail_errno(error, temporary);
    }
    done += static_cast<std::size_t>(n);
  }
  if (::fsync(fd.get()) != 0 || ::rename(temporary.c_str(), file.c_str()) != 0) fail_errno(errno, file);
}

}  // namespace

FloorKey floor_key(const plan::Plan& plan, const placement::Topology& topology) {
  FloorKey key;
  utsname system{};
  ::uname(&system);
  Json nodes = Json::array();
  for (const placement::NumaNode& node : topology.nodes) {
    // Rounded: a kernel update moves the total by a few pages.
    nodes.push_back({{"node", node.id}, {"gib", node.bytes >> 30}, {"cpus", node.cpus.size()}});
  }
  key.machine = {{"cpu_model", cpu_model()},  {"allowed_cpus", topology.allowed_cpus.size()},
                 {"numa_nodes", nodes},       {"kernel", system.release},
                 {"machine", system.machine}, {"backend", plan::name(rank::resolve_backend(plan.base.device.backend))}};
  key.fingerprint = hash(key.machine.dump());
  Json scenario = Json::parse(plan::to_json(plan.base));
  for (const char* part : {"name", "question", "seed", "slo", "fault", "inject", "experiment"}) scenario.erase(part);
  if (!plan.experiment.factor.empty()) {
    const Json::json_pointer at("/" + [&] {
      std::string path = plan.experiment.factor;
      for (char& c : path) c = c == '.' ? '/' : c;
      return path;
    }());
    if (scenario.contains(at)) scenario.at(at) = nullptr;
  }
  // Arms that alternate on tables of their own are neither of the two kinds that one_allocation tells apart.
  if (plan.experiment.coresident) scenario["coresident"] = true;
  key.scenario = hash(scenario.dump());
  key.one_allocation = plan.arms_share_allocation;
  return key;
}

std::optional<std::string> state_folder() {
  if (const char* own = std::getenv("ENGRAM_BENCH_STATE")) return own;
  if (const char* state = std::getenv("XDG_STATE_HOME")) return std::string(state) + "/engram-bench";
  if (const char* home = std::getenv("HOME")) return std::string(home) + "/.local/state/engram-bench";
  return std::nullopt;
}

AaPairs read_floor(const std::string& folder, const FloorKey& key) {
  const std::string file = file_of(folder, key);
  AaPairs out;
  const Json json = read(file);
  if (json.is_null()) return out;
  try {
    for (const Json& experiment : json.at("experiments")) {
      for (const auto& [metric, values] : experiment.at("log_ratios").items()) {
        for (const Json& value : values) out[metric].push_back(value.get<double>());
      }
    }
  } catch (const Json::exception& error) {
    fail(Exit::bad_data, "{}: {}", file, error.what());
  }
  return out;
}

void add_floor(const std::string& folder, const FloorKey& key, const std::string& origin, const AaPairs& pairs) {
  const std::string file = file_of(folder, key);
  std::error_code error;
  fs::create_directories(folder + "/floors", error);
  const std::string lock = folder + "/floors/lock";
  const UniqueFd fd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (fd.get() < 0 || ::flock(fd.get(), LOCK_EX) != 0) fail_errno(errno, lock);
  Json json = read(file);
  if (json.is_null()) {
    json = {{"schema", kSchema},           {"schema_version", 1},
            {"machine", key.machine},      {"fingerprint", key.fingerprint},
            {"scenario", key.scenario},    {"one_allocation", key.one_allocation},
            {"experiments", Json::array()}};
  }
  for (const Json& one : json["experiments"]) {
    if (one.value("origin", "") == origin) return;
  }
  json["experiments"].push_back({{"origin", origin}, {"log_ratios", pairs}});
  write_whole(file, dump(json) + "\n");
}

}  // namespace eb::result
