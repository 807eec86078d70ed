// What NVML says after a block, judged; and devices that ranks share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/result/support.h"

namespace eb::result {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Json device(const char* uuid, const std::vector<std::string>& throttle, int generation, const Json& processes) {
  return {{"index", 0},       {"uuid", uuid},          {"throttle_reasons", throttle}, {"link_generation", generation},
          {"link_width", 16}, {"processes", processes}};
}

class Devices : public testing::Test {
 protected:
  void SetUp() override {
    record_.plan = &plan_;
    record_.devices.resize(plan_.arms.size());
    record_.devices[0][0] = {{"backend", "cuda"}, {"uuid", "GPU-used"}, {"time_sliced", false}};
  }
  GateRecord judge(const Json& one) {
    return judge_gates(record_, 0, 0, {{"driver", "1"}, {"devices", Json::array({one})}});
  }
  plan::Plan plan_ = tiny_plan();
  Record record_;
};

TEST_F(Devices, GatesFailOnSlowdownsStrangersAndChangedLinks) {
  const Json own = Json::array({{{"pid", 7}, {"own", true}}});
  const GateRecord good = judge(device("GPU-used", {"sw_power_cap", "gpu_idle"}, 5, own));
  EXPECT_THAT(good.failed, IsEmpty());
  EXPECT_EQ(good.devices.size(), 1U);
  EXPECT_THAT(judge(device("GPU-used", {"hw_thermal_slowdown"}, 5, own)).failed,
              ElementsAre("device 0: hw_thermal_slowdown"));
  EXPECT_THAT(judge(device("GPU-used", {}, 5, Json::array({{{"pid", 9}, {"own", false}}}))).failed,
              ElementsAre("device 0: process 9 runs there too"));
  EXPECT_THAT(judge(device("GPU-used", {}, 3, own)).failed, IsEmpty());  // nothing to compare with yet
  record_.gates.push_back(good);
  EXPECT_THAT(judge(device("GPU-used", {}, 3, own)).failed,
              ElementsAre("device 0: link_generation changed from 5 to 3"));
}

TEST_F(Devices, DevicesOfOthersAndMissingReadingsAreNoFailure) {
  const GateRecord other = judge(device("GPU-other", {"hw_slowdown"}, 5, Json::array()));
  EXPECT_THAT(other.failed, IsEmpty());
  EXPECT_TRUE(other.devices.empty());
  Json unread = device("GPU-used", {}, 5, missing("no permission"));
  unread["throttle_reasons"] = missing("not supported");
  EXPECT_THAT(judge(unread).failed, IsEmpty());
  EXPECT_TRUE(judge_gates(record_, 0, 0, missing("no NVML")).devices.empty());
}

TEST_F(Devices, SharedDevicesAndFailedGatesAreWarnings) {
  EXPECT_FALSE(record_.time_sliced());
  EXPECT_THAT(device_warnings(record_), IsEmpty());
  record_.devices[0][1] = {{"backend", "cuda"}, {"uuid", "GPU-another"}, {"time_sliced", false}};
  EXPECT_FALSE(record_.time_sliced());
  for (const Json& device : devices_of(record_, 0)) EXPECT_EQ(device.at("time_sliced"), false) << device.dump();
  // Two replicas on one device share no collective: neither rank knows of the other.
  record_.devices[0][1] = {{"backend", "cuda"}, {"uuid", "GPU-used"}, {"time_sliced", false}};
  EXPECT_TRUE(record_.time_sliced());
  for (const Json& device : devices_of(record_, 0)) EXPECT_EQ(device.at("time_sliced"), true) << device.dump();
  record_.devices[0][1] = {{"backend", "cuda"}, {"uuid", "GPU-used"}, {"time_sliced", true}};
  record_.gates.push_back(judge(device("GPU-used", {"hw_slowdown"}, 5, Json::array())));
  EXPECT_TRUE(record_.time_sliced());
  const std::vector<Warning> warnings = device_warnings(record_);
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_EQ(warnings[0].code, "time_sliced");
  EXPECT_EQ(warnings[1].code, "gate_failed");
  EXPECT_THAT(warnings[1].text, HasSubstr("hw_slowdown"));
}

}  // namespace
}  // namespace eb::result
