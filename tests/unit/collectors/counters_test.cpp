// Hardware counters on a made-up /sys and a kernel that counts by the script: what is opened, how it is added up, and
// that what cannot be counted is null with the reason.
#include "collectors/counters.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "collectors/counter_recipes.h"
#include "collectors/pass_collector.h"
#include "harness/base/error.h"
#include "tests/unit/temporary_folder.h"

namespace eb::collectors {
namespace {

constexpr const char* kSapphireRapids =
    "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\nvendor_id\t: x\n";
constexpr const char* kZen3 = "vendor_id : AuthenticAMD\ncpu family : 25\nmodel : 1\n";

class FakePerf final : public PerfSystem {
 public:
  int open(const PerfEvent& event) override {
    const int number = answer ? answer(event) : 0;
    if (number < 0) return number;
    opened.push_back(event);
    is_open.push_back(true);
    return 100 + static_cast<int>(opened.size()) - 1;
  }
  void enable(int /*fd*/) override { ++enabled; }
  void disable(int /*fd*/) override { ++disabled; }
  bool read(int fd, PerfValue& value) override {
    value = count(opened.at(static_cast<std::size_t>(fd - 100)));
    return readable;
  }
  void close(int fd) override { is_open.at(static_cast<std::size_t>(fd - 100)) = false; }

  std::function<int(const PerfEvent&)> answer;
  std::function<PerfValue(const PerfEvent&)> count = [](const PerfEvent&) { return PerfValue{1000, 50, 50}; };
  std::vector<PerfEvent> opened;
  std::vector<bool> is_open;
  int enabled = 0;
  int disabled = 0;
  bool readable = true;
};

class FakeSys : public testing::Test {
 protected:
  void SetUp() override {
    perf = std::make_shared<FakePerf>();
    for (int cpu = 0; cpu < 4; ++cpu) {
      write(fmt::format("/sys/devices/system/cpu/cpu{}/topology/physical_package_id", cpu), cpu < 2 ? "0" : "1");
    }
    write("/sys/devices/system/node/node0/cpulist", "0-1");
    write("/sys/devices/system/node/node1/cpulist", "2-3");
    write("/sys/devices/system/node/node2/cpulist", "");  // memory without CPUs
  }
  void write(const std::string& path, const std::string& text) const { folder_.write(path, text + "\n"); }
  void pmu(const std::string& name, int type, const std::map<std::string, std::string>& format,
           const std::string& cpus = "0,2") const {
    const std::string folder = "/sys/bus/event_source/devices/" + name;
    write(folder + "/type", fmt::format("{}", type));
    write(folder + "/cpumask", cpus);
    for (const auto& [field, bits] : format) write(folder + "/format/" + field, bits);
  }
  void sapphire_rapids() const {
    write("/proc/cpuinfo", kSapphireRapids);
    const std::map<std::string, std::string> common = {{"event", "config:0-7"}, {"umask", "config:8-15,32-55"}};
    for (int i = 0; i < 2; ++i) pmu(fmt::format("uncore_imc_{}", i), 20 + i, common);
    pmu("uncore_imc_free_running_0", 30, common);  // another unit: its name only begins alike
    pmu("uncore_upi_0", 40, common);
    pmu("uncore_iio_0", 50,
        {{"event", "config:0-7"}, {"umask", "config:8-15"}, {"ch_mask", "config:36-47"}, {"fc_mask", "config:48-50"}});
  }
  std::vector<CounterReading> window() {
    UncoreCounters counters(root, perf);
    counters.start();
    return counters.stop();
  }
  static std::vector<CounterReading> of(const std::vector<CounterReading>& all, const std::string& name) {
    std::vector<CounterReading> found;
    for (const CounterReading& one : all) {
      if (one.name == name) found.push_back(one);
    }
    return found;
  }

  TemporaryFolder folder_;
  std::string root = folder_.path();
  std::shared_ptr<FakePerf> perf;
};

TEST_F(FakeSys, SocketsAreAddedUpApartAndNamedByTheirNodes) {
  sapphire_rapids();
  perf->count = [](const PerfEvent& event) { return PerfValue{event.cpu == 0 ? 1000U : 10U, 50, 50}; };
  const auto readings = window();
  const auto reads = of(readings, "memory_read_bytes");
  ASSERT_EQ(reads.size(), 2U);
  EXPECT_EQ(reads[0].package, 0);
  EXPECT_EQ(reads[0].nodes, std::vector<int>{0});
  EXPECT_EQ(reads[0].bytes, 2 * 1000 * 64.0);  // two controllers
  EXPECT_EQ(reads[0].direction, "read");
  EXPECT_EQ(reads[0].events, 2);
  EXPECT_EQ(reads[0].running_share, 1);
  EXPECT_FALSE(reads[0].source.empty());
  EXPECT_EQ(reads[1].nodes, std::vector<int>{1});
  EXPECT_EQ(reads[1].bytes, 2 * 10 * 64.0);
  EXPECT_DOUBLE_EQ(of(readings, "socket_link_sent_bytes")[0].bytes.value(), 1000 * 64.0 / 9);
  EXPECT_EQ(of(readings, "pcie_write_bytes")[1].bytes, 10 * 4.0);
  EXPECT_EQ(perf->enabled, static_cast<int>(perf->opened.size()));
  EXPECT_EQ(perf->disabled, perf->enabled);
  EXPECT_EQ(std::count(perf->is_open.begin(), perf->is_open.end(), true), 0);  // all closed again
}

TEST_F(FakeSys, EventsAreWrittenAsTheKernelsFormatSays) {
  sapphire_rapids();
  (void)window();
  const auto has = [&](std::uint32_t type, std::uint64_t config) {
    return std::any_of(perf->opened.begin(), perf->opened.end(),
                       [&](const PerfEvent& one) { return one.type == type && one.config[0] == config; });
  };
  EXPECT_TRUE(has(20, 0xcf05));
  EXPECT_TRUE(has(21, 0xf005));
  EXPECT_TRUE(has(40, 0x0f02));
  EXPECT_TRUE(has(50, 0x83U | 0x04U << 8U | 0xffULL << 36U | 0x07ULL << 48U));
  EXPECT_FALSE(
      std::any_of(perf->opened.begin(), perf->opened.end(), [](const PerfEvent& one) { return one.type == 30; }));
}

TEST_F(FakeSys, FieldsInSeveralPieces) {
  const auto bits = parse_format("config:0-7,32-35,59-60\n");
  ASSERT_TRUE(bits);
  std::uint64_t words[3] = {0, 0, 0};
  EXPECT_TRUE(place(0x7c7, *bits, words));
  EXPECT_EQ(words[0], 0xc7ULL | 0x7ULL << 32U);
  EXPECT_FALSE(place(1U << 14U, *bits, words));  // 14 bits is all that it takes
  ASSERT_TRUE(parse_format("config2:5"));
  EXPECT_EQ(parse_format("config2:5")->word, 2);
  for (const char* wrong : {"", "config", "config:", "config:9-3", "config:64", "config3:0", "config:x", "config:0,"}) {
    EXPECT_EQ(parse_format(wrong).has_value(), std::string(wrong) == "config:0,") << wrong;
  }
}

TEST_F(FakeSys, EventsInTurnsAreAnEstimateAndSaySo) {
  write("/proc/cpuinfo", kZen3);
  pmu("amd_df", 11, {{"event", "config:0-7,32-35,59-60"}, {"umask", "config:8-15"}});
  perf->count = [](const PerfEvent& event) { return PerfValue{100, 100, event.config[0] == 0x3807 ? 25U : 50U}; };
  const auto memory = of(window(), "memory_bytes");
  ASSERT_EQ(memory.size(), 2U);
  EXPECT_EQ(memory[0].events, 8);
  EXPECT_DOUBLE_EQ(memory[0].bytes.value(), (400 + 7 * 200) * 64.0);
  EXPECT_DOUBLE_EQ(memory[0].running_share, 0.25);
  EXPECT_EQ(memory[0].direction, "both");
}

TEST_F(FakeSys, ASocketInSeveralNodesNamesThemAll) {
  sapphire_rapids();
  write("/sys/devices/system/node/node1/cpulist", "1");
  write("/sys/devices/system/node/node0/cpulist", "0");
  write("/sys/devices/system/node/node3/cpulist", "2-3");
  const auto reads = of(window(), "memory_read_bytes");
  EXPECT_EQ(reads[0].nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(reads[1].nodes, std::vector<int>{3});
}

TEST_F(FakeSys, RefusedByTheKernelIsNullWithTheRemedy) {
  sapphire_rapids();
  write("/proc/sys/kernel/perf_event_paranoid", "4");
  perf->answer = [](const PerfEvent&) { return -EACCES; };
  const auto readings = window();
  ASSERT_FALSE(readings.empty());
  for (const CounterReading& one : readings) {
    EXPECT_FALSE(one.bytes) << one.name;
    EXPECT_NE(one.reason.find("perf_event_paranoid is 4"), std::string::npos) << one.reason;
    EXPECT_NE(one.reason.find("CAP_PERFMON"), std::string::npos);
  }
}

TEST_F(FakeSys, APartThatCannotBeCountedMakesNoSmallerSum) {
  sapphire_rapids();
  perf->answer = [](const PerfEvent& event) { return event.type == 21 && event.cpu == 2 ? -EBUSY : 0; };
  const auto readings = window();
  ASSERT_EQ(of(readings, "memory_read_bytes").size(), 1U);
  EXPECT_FALSE(of(readings, "memory_read_bytes")[0].bytes);
  EXPECT_TRUE(of(readings, "socket_link_sent_bytes")[0].bytes);
  EXPECT_EQ(std::count(perf->is_open.begin(), perf->is_open.end(), true), 0);
}

TEST_F(FakeSys, WithoutPmusOrFormatsOrRecipe) {
  write("/proc/cpuinfo", kSapphireRapids);
  EXPECT_NE(of(window(), "memory_read_bytes")[0].reason.find("no PMU uncore_imc_"), std::string::npos);
  pmu("uncore_imc_0", 20, {{"event", "config:0-7"}});
  EXPECT_NE(of(window(), "memory_read_bytes")[0].reason.find("no field umask"), std::string::npos);
  pmu("uncore_imc_0", 20, {{"event", "config:0-7"}, {"umask", "config:8-11"}});
  EXPECT_NE(of(window(), "memory_read_bytes")[0].reason.find("takes 0xcf"), std::string::npos);
  write("/proc/cpuinfo", "vendor_id : AuthenticAMD\ncpu family : 23\nmodel : 49\n");
  const auto none = window();
  EXPECT_EQ(none.size(), 3U);
  for (const CounterReading& one : none) {
    EXPECT_EQ(one.reason, "no recipe for AuthenticAMD family 23 model 49 (collectors/recipes)");
  }
  EXPECT_TRUE(perf->opened.empty());
}

TEST_F(FakeSys, ACounterThatNeverRanOrCannotBeReadIsNull) {
  sapphire_rapids();
  perf->count = [](const PerfEvent&) { return PerfValue{0, 100, 0}; };
  EXPECT_NE(window()[0].reason.find("never ran"), std::string::npos);
  perf->count = [](const PerfEvent&) { return PerfValue{5, 100, 100}; };
  perf->readable = false;
  for (const CounterReading& one : window()) EXPECT_FALSE(one.bytes);
}

TEST(CounterRecipes, OneForEachCpuAndEachStatesItsSource) {
  const CpuModel cpus[] = {{"GenuineIntel", 6, 106}, {"GenuineIntel", 6, 143}, {"GenuineIntel", 6, 207},
                           {"AuthenticAMD", 25, 1},  {"AuthenticAMD", 25, 17}, {"AuthenticAMD", 25, 160},
                           {"AuthenticAMD", 26, 2}};
  for (const CpuModel& cpu : cpus) {
    const auto recipe = recipe_for(cpu);
    ASSERT_TRUE(recipe) << text(cpu);
    bool memory = false;
    bool links = false;
    for (const CounterRecipe& counter : recipe->counters) {
      EXPECT_GT(counter.source.size(), 20U) << counter.name;
      memory = memory || counter.object == "memory_controller";
      links = links || counter.object == "socket_link";
    }
    EXPECT_TRUE(memory && links) << recipe->file;
  }
  EXPECT_FALSE(recipe_for({"GenuineIntel", 6, 85}));
  EXPECT_FALSE(recipe_for({"AuthenticAMD", 25, 33}));  // a desktop of the same family
  EXPECT_FALSE(recipe_for({}));
}

TEST(CounterRecipes, ABrokenOneIsNamed) {
  const CpuModel cpu{"x", 1, 2};
  const std::string head = R"({"title": "t", "cpu": {"vendor": "x", "family": 1, "models": [[2, 2]]}, "absent": [], )";
  const std::string counter = R"("name": "n", "object": "o", "direction": "read", "units": "u", "source": "s", )";
  EXPECT_TRUE(parse_recipe("f", head + R"("counters": []})", cpu));
  const std::string wrong[] = {
      "{", head + "}", head + R"("counters": [{)" + counter + R"("bytes_per_count": 4, "events": [{"event": "no"}]}]})",
      head + R"("counters": [{)" + counter + R"("bytes_per_count": 0, "events": [{"event": "1"}]}]})",
      head + R"("counters": [{)" + counter + R"("bytes_per_count": 4, "events": []}]})"};
  for (const std::string& json : wrong) EXPECT_THROW((void)parse_recipe("f", json, cpu), Error) << json;
}

CounterReading reading(const std::string& object, const std::string& direction, std::optional<double> bytes) {
  CounterReading one;
  one.name = object + "_" + direction;
  one.object = object;
  one.direction = direction;
  one.bytes = bytes;
  if (!bytes) one.reason = "why";
  one.window_ns = 1'000'000'000;
  return one;
}

TEST(Traffic, SumsForVerdictsAreWholeOrNothing) {
  std::vector<CounterReading> all = {reading("memory_controller", "read", 100),
                                     reading("memory_controller", "write", 20), reading("socket_link", "sent", 7),
                                     reading("socket_link", "received", 9), reading("socket_link", "sent", 5)};
  EXPECT_EQ(host_bytes(all).bytes, 120);
  EXPECT_EQ(cross_socket_bytes(all).bytes, 12);  // sent: what arrives is the same bytes again
  all.push_back(reading("socket_link", "sent", std::nullopt));
  EXPECT_FALSE(cross_socket_bytes(all).bytes);
  EXPECT_NE(cross_socket_bytes(all).reason.find("why"), std::string::npos);
  const auto json = nlohmann::json::parse(counters_json(all));
  EXPECT_EQ(json["host_bytes"], 120);
  EXPECT_TRUE(json["cross_socket_bytes"]["value"].is_null());
  EXPECT_EQ(json["readings"][0]["bytes_per_s"], 100);
  EXPECT_EQ(json["readings"][5]["bytes"]["reason"], "why");
}

TEST(Traffic, PcieStandsInForControllersThatCannotBeCounted) {
  const std::vector<CounterReading> some = {reading("memory_controller", "both", std::nullopt),
                                            reading("pcie_device", "received", 30), reading("pcie_device", "sent", 2)};
  EXPECT_EQ(host_bytes(some).bytes, 32);
  const TrafficSum none = host_bytes({reading("memory_controller", "both", std::nullopt)});
  EXPECT_FALSE(none.bytes);
  EXPECT_NE(none.reason.find("why"), std::string::npos);
  EXPECT_FALSE(host_bytes({}).bytes);
}

TEST(Traffic, NvmlsSamplesAreRatesOfTheirOwnWindow) {
  const auto two = pcie_readings({{"GPU-a", 100, 1000}, {"GPU-a", 300, 3000}, {"GPU-b", 1, 2}}, 500'000'000, "");
  ASSERT_EQ(two.size(), 4U);
  EXPECT_EQ(two[0].device, "GPU-a");
  EXPECT_EQ(two[0].direction, "received");
  EXPECT_DOUBLE_EQ(two[0].bytes.value(), 1000);  // 2000 B/s for half a second
  EXPECT_DOUBLE_EQ(two[1].bytes.value(), 100);
  EXPECT_EQ(two[0].samples, 2);
  EXPECT_EQ(two[0].sampled_ns, 20'000'000);
  const auto none = pcie_readings({}, 500'000'000, "no NVML");
  ASSERT_EQ(none.size(), 1U);
  EXPECT_FALSE(none[0].bytes);
  EXPECT_EQ(none[0].reason, "no NVML");
}

TEST(Traffic, TheObservedPassCountsIt) {
  for (const auto& one : pass_collectors()) {
    if (std::string(one->name()) != "counters") continue;
    EXPECT_FALSE(one->replays_kernels());
    EXPECT_TRUE(nlohmann::json::parse(one->stop())["host_bytes"]["value"].is_null());  // not started
    one->start({});
    const auto seen = nlohmann::json::parse(one->stop());
    EXPECT_FALSE(seen["readings"].empty());
    for (const char* sum : {"cross_socket_bytes", "host_bytes"}) {
      EXPECT_TRUE(seen[sum].is_number() || !seen[sum]["reason"].get<std::string>().empty()) << sum;
    }
    return;
  }
  FAIL() << "the counters are not among the collectors";
}

// On this machine, whatever it has: a reading or a reason.
TEST(Traffic, ThisMachineGivesAFigureOrAReason) {
  TrafficCounters counters;
  counters.start();
  const auto readings = counters.stop();
  ASSERT_FALSE(readings.empty());
  for (const CounterReading& one : readings) {
    EXPECT_NE(one.bytes.has_value(), !one.reason.empty()) << one.name;
    EXPECT_GT(one.window_ns, 0) << one.name;
  }
}

}  // namespace
}  // namespace eb::collectors
