#include "harness/rank/step/injection.h"

#include <gtest/gtest.h>

#include <vector>

#include "harness/base/error.h"

namespace eb::rank {
namespace {

void add(std::vector<EventRecord>& events, std::uint32_t step, EventKind kind, std::int16_t layer,
         std::int64_t time_ns) {
  EventRecord one;
  one.step = step;
  one.kind = static_cast<std::uint16_t>(kind);
  one.layer = layer;
  one.clock = static_cast<std::uint8_t>(Clock::device);
  one.time_ns = time_ns;
  events.push_back(one);
  one.clock = static_cast<std::uint8_t>(Clock::host);  // when it was enqueued: says nothing about a length
  one.time_ns = 0;
  events.push_back(one);
}

// Lookups of layer 1 take 1000, 3000, 2000 ns; backbone layers 0 and 2 take 500; gathers 400, 100, 900.
std::vector<EventRecord> slot() {
  std::vector<EventRecord> events;
  const std::int64_t lookups[] = {1000, 3000, 2000};
  const std::int64_t gathers[] = {400, 100, 900};
  for (std::uint32_t step = 0; step < 3; ++step) {
    const std::int64_t base = 100000 * (step + 1);
    add(events, step, EventKind::lookup_start, 1, base);
    add(events, step, EventKind::lookup_done, 1, base + lookups[step]);
    for (const std::int16_t layer : {0, 2}) {
      add(events, step, EventKind::backbone_start, layer, base);
      add(events, step, EventKind::backbone_done, layer, base + 500);
    }
    add(events, step, EventKind::gather_start, 1, base);
    add(events, step, EventKind::gather_done, 1, base + gathers[step]);
  }
  return events;
}

TEST(Injection, IsAShareOfWhatTheStageTook) {
  StageTimes times;
  times.learn(slot());
  EXPECT_EQ(times.injection("lookup", 10, 1).lookup_ns, (std::map<int, std::int64_t>{{1, 200}}));
  EXPECT_EQ(times.injection("gather", 50, 1).gather_ns, (std::map<int, std::int64_t>{{1, 50}})) << "of the least";
  const Injection front = times.injection("front", 20, 1);
  EXPECT_EQ(front.front_ns, (std::map<int, std::int64_t>{{0, 100}})) << "layer 2 lies behind the last consumer";
  EXPECT_TRUE(front.lookup_ns.empty());
}

TEST(Injection, NeedsASlotWithoutIt) {
  StageTimes times;
  EXPECT_THROW(static_cast<void>(times.injection("lookup", 10, 1)), Error);
  times.learn(slot());
  times.learn({});  // a slot without instrumentation teaches nothing and forgets nothing
  EXPECT_NO_THROW(static_cast<void>(times.injection("lookup", 10, 1)));
  EXPECT_THROW(static_cast<void>(times.injection("front", 10, 0)), Error) << "no layer in front of the consumer";
}

}  // namespace
}  // namespace eb::rank
