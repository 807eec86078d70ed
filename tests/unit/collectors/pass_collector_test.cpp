#include "collectors/pass_collector.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

namespace eb::collectors {
namespace {

using Json = nlohmann::json;

TEST(PassCollector, ReadsThePagesOfItsProcessesUntilItIsStopped) {
  const auto collector = numa_maps_collector();
  const int own = ::getpid();
  collector->start(std::span(&own, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(80));
  const Json seen = Json::parse(collector->stop());
  if (!seen.contains("passes")) GTEST_SKIP() << seen.dump();  // no numa_maps here
  EXPECT_GE(seen["passes"].get<int>(), 2);
  EXPECT_GT(seen["read_us_per_pass"].get<double>(), 0);
  std::int64_t pages = 0;
  for (const Json& count : seen["node_pages"]) pages += count.get<std::int64_t>();
  EXPECT_GT(pages, 100);
}

TEST(PassCollector, AProcessThatIsNotThereIsAReason) {
  const auto collector = numa_maps_collector();
  const int nobody = 1 << 30;
  collector->start(std::span(&nobody, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const Json seen = Json::parse(collector->stop());
  EXPECT_TRUE(seen["node_pages"]["value"].is_null());
  EXPECT_NE(seen["node_pages"]["reason"].get<std::string>().find("cannot be read"), std::string::npos);
}

TEST(PassCollector, AllOfThisBuildStartAndStop) {
  const int own = ::getpid();
  for (const auto& collector : pass_collectors()) {
    collector->start(std::span(&own, 1));
    EXPECT_TRUE(Json::parse(collector->stop()).is_object()) << collector->name();
  }
}

}  // namespace
}  // namespace eb::collectors
