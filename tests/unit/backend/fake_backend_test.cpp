// The fake backend: scripted times to the nanosecond, faults, and the dependency graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "harness/backend/fake/fake.h"
#include "harness/base/error.h"
#include "tests/unit/backend/ranks.h"
#include "tests/unit/error_of.h"

namespace eb::backend::fake {
namespace {

using eb::test::error_of;
using test::As;
using test::group_of;
using test::run_ranks;
using test::SharedArena;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<FakeBackend> make(const Script& script, bool record_graph = false) {
  FakeOptions options;
  options.units = 132;
  options.script = script;
  options.record_graph = record_graph;
  return make_fake_backend(options);
}

EventId record(Backend& backend, StreamId stream) {
  const EventId event = backend.new_event();
  backend.record(stream, event);
  return event;
}

std::int64_t device_us(const Backend& backend, EventId event) {
  return (backend.times(event).device_ns - kStartNs) / 1000;
}

// A host that costs nothing and round durations, so that the figures below can be read off.
Script plain() {
  Script script;
  script.host_cost_ns = 0;
  script.duration_ns = {{"lookup", 50'000}, {"lookup.l14", 70'000}, {"backbone", 30'000}};
  return script;
}

void lookup(Backend& backend, StreamId stream, std::int16_t layer) {
  (void)backend.lookup(stream, {OpKind::lookup, layer}, {}, 66);
}
void backbone(Backend& backend, StreamId stream, std::int16_t layer) {
  backend.busy(stream, {OpKind::backbone, layer}, 1);
}

TEST(FakeBackend, DescribesItself) {
  const auto backend = make({});
  EXPECT_EQ(backend->device().backend, "fake");
  EXPECT_EQ(backend->device().units, 132);
  EXPECT_TRUE(backend->device().emulated_time);
}

// Two lookups in one FIFO beside a backbone: 50 + 70 us against 30 us a layer; the last consumer waits until 120.
TEST(FakeBackend, StreamsRunSideBySideAndAWaitLiftsTheTime) {
  const auto backend = make(plain());
  const StreamId main = backend->create_stream("main");
  const StreamId prefetch = backend->create_stream("prefetch");
  lookup(*backend, prefetch, 1);
  const EventId first = record(*backend, prefetch);
  lookup(*backend, prefetch, 14);
  const EventId second = record(*backend, prefetch);
  backbone(*backend, main, 0);
  const EventId arrival = record(*backend, main);
  backend->wait(main, first);
  const EventId resumed = record(*backend, main);
  backbone(*backend, main, 1);
  const EventId arrival_14 = record(*backend, main);
  backend->wait(main, second);
  const EventId resumed_14 = record(*backend, main);
  EXPECT_EQ(device_us(*backend, first), 50);
  EXPECT_EQ(device_us(*backend, second), 120);
  EXPECT_EQ(device_us(*backend, arrival), 30);
  EXPECT_EQ(device_us(*backend, resumed), 50);
  EXPECT_EQ(device_us(*backend, arrival_14), 80);
  EXPECT_EQ(device_us(*backend, resumed_14), 120);
  EXPECT_EQ(backend->host_now_ns(), kStartNs);
  backend->host_wait(first);
  EXPECT_EQ(backend->host_now_ns(), kStartNs + 50'000);
  backend->synchronize();
  EXPECT_EQ(backend->host_now_ns(), kStartNs + 120'000);
}

TEST(FakeBackend, TheHostsTimeIsVirtualToo) {
  Script script;  // the defaults: 10 us an operation, 100 ns a call
  const auto backend = make(script);
  const StreamId main = backend->create_stream("main");
  const EventId start = record(*backend, main);              // host 100
  backend->fill(main, {OpKind::fill}, nullptr, 0, 0);        // host 200: 200 .. 10200
  const EventId done = record(*backend, main);               // host 300
  backend->advance_host(20'000);                             // a slow host: 20300
  backend->copy(main, {OpKind::copy}, nullptr, nullptr, 0);  // host 20400: 20400 .. 30400
  const EventId late = record(*backend, main);               // host 20500
  const auto expect = [&](EventId event, std::int64_t enqueue_ns, std::int64_t device_ns) {
    EXPECT_EQ(backend->times(event).enqueue_ns, kStartNs + enqueue_ns);
    EXPECT_EQ(backend->times(event).device_ns, kStartNs + device_ns);
  };
  expect(start, 100, 100);
  expect(done, 300, 10'200);
  expect(late, 20'500, 30'400);
}

TEST(FakeBackend, BusyLastsAsItSaysUnlessScripted) {
  Script script = plain();
  script.duration_ns = {{"inject.l3", 5'000}};
  const auto backend = make(script);
  const StreamId main = backend->create_stream("main");
  backend->busy(main, {OpKind::inject}, 123'000);
  EXPECT_EQ(device_us(*backend, record(*backend, main)), 123);
  backend->busy(main, {OpKind::inject, 3}, 123'000);
  EXPECT_EQ(device_us(*backend, record(*backend, main)), 128);
}

TEST(FakeBackend, OperationsDoTheirWorkAtTheCall) {
  const auto backend = make(plain());
  const StreamId main = backend->create_stream("main");
  const auto from = backend->allocate(8, MemoryKind::device, "from");
  const auto to = backend->allocate(8, MemoryKind::device, "to");
  backend->fill(main, {OpKind::fill}, from->data(), 0x5A, 8);
  backend->copy(main, {OpKind::copy}, to->data(), from->data(), 8);
  EXPECT_EQ(to->as<std::uint8_t>()[7], 0x5A);
  const Bf16 one = to_bf16(1);
  const std::vector<Bf16> identity{one, {}, {}, one};
  const auto matrix = backend->upload_matrix(identity, 2, 2);
  const std::vector<Bf16> x{to_bf16(3), to_bf16(-4)};
  std::vector<Bf16> y(2);
  backend->linear(main, {OpKind::wkv, 1}, {x.data(), 2, matrix.get(), y.data(), 2, 1, 0});
  EXPECT_EQ(y, x);
}

TEST(FakeBackend, MisuseOfEventsIsNamed) {
  const auto backend = make({});
  const StreamId main = backend->create_stream("main");
  const EventId event = backend->new_event();
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->wait(main, event); }), HasSubstr("never recorded"));
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->host_wait(event); }), HasSubstr("never recorded"));
  EXPECT_THAT(error_of(Exit::failure, [&] { (void)backend->times(event); }), HasSubstr("never recorded"));
  backend->record(main, event);
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->record(main, event); }), HasSubstr("twice"));
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->record(main, event + 1); }), HasSubstr("only 1 events"));
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->record(main + 1, event); }), HasSubstr("stream 1"));
  EXPECT_THAT(error_of(Exit::failure,
                       [&] {
                         (void)backend->lookup(main, {OpKind::lookup, 1}, {}, 0);
                       }),
              HasSubstr("grid cap"));
  backend->reset_events();
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->wait(main, event); }), HasSubstr("never recorded"));
}

TEST(FakeBackend, AScriptThatNamesNothingIsRefused) {
  const auto with = [](const std::string& name, std::int64_t duration_ns) {
    Script script;
    script.duration_ns[name] = duration_ns;
    return [script] { (void)make(script); };
  };
  for (const char* name : {"look", "lookup.", "lookup.l", "lookup.l-1", "lookup.lx", "lookup.l1x", "", ".l1"}) {
    EXPECT_THAT(error_of(Exit::failure, with(name, 1)), HasSubstr("no operation")) << name;
  }
  EXPECT_THAT(error_of(Exit::failure, with("lookup", -1)), HasSubstr("-1 ns"));
  EXPECT_NO_THROW(with("expert_exchange.l39", 0)());
  Script script;
  script.faults = {{.op = "lookups"}};
  EXPECT_THAT(error_of(Exit::failure, [&] { (void)make(script); }), HasSubstr("no operation"));
}

class Faults : public testing::Test {
 protected:
  // Four fills of one byte each; returns the bytes after the host has waited, and what was there before it waited.
  std::vector<int> fill_four(const Script& script, bool wait) {
    backend_ = make(script);
    const StreamId main = backend_->create_stream("main");
    bytes_.assign(4, 0);
    for (int i = 0; i < 4; ++i) {
      backend_->fill(main, {OpKind::fill, static_cast<std::int16_t>(i / 2)}, reinterpret_cast<std::byte*>(&bytes_[i]),
                     1, 1);
    }
    last_ = record(*backend_, main);
    if (wait) backend_->synchronize();
    return {bytes_.begin(), bytes_.end()};
  }
  std::unique_ptr<FakeBackend> backend_;
  std::vector<std::uint8_t> bytes_;
  EventId last_{};
};

TEST_F(Faults, AreCountedByNameOrByNameAndLayer) {
  Script script = plain();
  script.faults = {{.op = "fill", .nth = 3}};
  EXPECT_THAT(fill_four(script, true), ElementsAre(1, 1, 0, 1));
  script.faults = {{.op = "fill.l1", .nth = 2}};
  EXPECT_THAT(fill_four(script, true), ElementsAre(1, 1, 1, 0));
  script.faults = {{.op = "fill.l0", .nth = 0}};
  EXPECT_THAT(fill_four(script, true), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(device_us(*backend_, last_), 40);  // the time of what was skipped passes
}

TEST_F(Faults, LateWorkIsDoneWhenTheHostWaits) {
  Script script = plain();
  script.faults = {{.op = "fill", .nth = 2, .kind = Fault::Kind::late}};
  EXPECT_THAT(fill_four(script, false), ElementsAre(1, 0, 1, 1));
  backend_->synchronize();
  EXPECT_THAT(bytes_, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(fill_four(script, true), ElementsAre(1, 1, 1, 1));
}

TEST_F(Faults, AFailureStopsTheRestAndSurfacesFromEveryWait) {
  Script script = plain();
  script.faults = {{.op = "fill.l1", .nth = 1, .kind = Fault::Kind::fail, .text = "an uncorrectable ECC error"}};
  EXPECT_THAT(fill_four(script, false), ElementsAre(1, 1, 0, 0));
  const std::string wanted = "stream main: fill of layer 1: an uncorrectable ECC error";
  EXPECT_EQ(error_of(Exit::failure, [&] { backend_->host_wait(last_); }), wanted);
  EXPECT_EQ(error_of(Exit::failure, [&] { backend_->synchronize(); }), wanted);
}

// Rank 1 comes 100 us later; both end at its arrival plus their own duration, and the data are right.
TEST(FakeCollective, EndsAtTheLastArrival) {
  const std::vector<GroupSpec> groups{{"tp", {0, 1}, 0}};
  const SharedArena arena(groups);
  for (const As as : {As::processes, As::threads}) {
    std::memset(arena.get().address, 0, arena.get().bytes);
    run_ranks(as, 2, [&](int index) {
      FakeOptions options;
      options.arena = arena.get();
      options.groups = groups;
      options.rank = index;
      options.script.host_cost_ns = 0;
      options.script.duration_ns = {{"gather", 7'000}, {"expert_exchange.l2", 3'000}};
      const auto backend = make_fake_backend(options);
      const StreamId main = backend->create_stream("main");
      const auto group = backend->communicator(group_of("tp", {0, 1}, index));
      if (index == 1) backend->busy(main, {OpKind::inject}, 100'000);
      const std::int32_t mine = 40 + index;
      std::int32_t all[2] = {};
      const auto* send = reinterpret_cast<const std::byte*>(&mine);
      group->all_gather(main, {OpKind::gather, 1}, send, reinterpret_cast<std::byte*>(all), 4);
      EXPECT_THAT(all, ElementsAre(40, 41));
      EXPECT_EQ(device_us(*backend, record(*backend, main)), 107);
      const std::int32_t out[2] = {index * 10, index * 10 + 1};
      group->all_to_all(main, {OpKind::expert_exchange, 2}, reinterpret_cast<const std::byte*>(out),
                        reinterpret_cast<std::byte*>(all), 4);
      EXPECT_THAT(all, ElementsAre(index, 10 + index));
      EXPECT_EQ(device_us(*backend, record(*backend, main)), 110);
    });
  }
}

TEST(FakeCollective, ASkippedOneStillSendsAndALateOneArrivesAtTheWait) {
  const std::vector<GroupSpec> groups{{"tp", {0, 1}, 0}};
  const SharedArena arena(groups);
  run_ranks(As::processes, 2, [&](int index) {
    FakeOptions options;
    options.arena = arena.get();
    options.groups = groups;
    options.rank = index;
    if (index == 0) {
      options.script.faults = {{.op = "gather", .nth = 1, .kind = Fault::Kind::skip},
                               {.op = "gather", .nth = 2, .kind = Fault::Kind::late}};
    }
    const auto backend = make_fake_backend(options);
    const StreamId main = backend->create_stream("main");
    const auto group = backend->communicator(group_of("tp", {0, 1}, index));
    for (int call = 1; call <= 2; ++call) {
      const std::int32_t mine = call * 10 + index;
      std::int32_t all[2] = {-1, -1};
      group->all_gather(main, {OpKind::gather}, reinterpret_cast<const std::byte*>(&mine),
                        reinterpret_cast<std::byte*>(all), 4);
      if (index == 0) {
        EXPECT_THAT(all, ElementsAre(-1, -1));
      } else {
        EXPECT_THAT(all, ElementsAre(call * 10, call * 10 + 1));
      }
      backend->synchronize();
      if (index == 0 && call == 1) {
        EXPECT_THAT(all, ElementsAre(-1, -1));
      } else {
        EXPECT_THAT(all, ElementsAre(call * 10, call * 10 + 1));
      }
    }
  });
}

// The step in small: prefetch of two layers, released by the main stream (`at_consume`) or not, with or without the
// records of instrumentation.
std::unique_ptr<FakeBackend> small_step(bool at_consume, bool instrument, bool forget_wait = false) {
  auto backend = make(plain(), true);
  const StreamId main = backend->create_stream("main");
  const StreamId prefetch = backend->create_stream("prefetch");
  const auto mark = [&](StreamId stream) {
    if (instrument) (void)record(*backend, stream);
  };
  backend->fill(main, {OpKind::hash}, nullptr, 0, 0);
  backend->wait(prefetch, record(*backend, main));
  EventId done[2] = {};
  const auto submit = [&](int i) {
    mark(prefetch);
    lookup(*backend, prefetch, i == 0 ? 1 : 14);
    done[i] = record(*backend, prefetch);
  };
  if (!at_consume) {
    submit(0);
    submit(1);
  }
  for (int i = 0; i < 2; ++i) {
    mark(main);
    backbone(*backend, main, static_cast<std::int16_t>(i));
    mark(main);
    if (at_consume) {
      backend->wait(prefetch, record(*backend, main));
      submit(i);
    }
    if (!forget_wait) backend->wait(main, done[i]);
    mark(main);
    backend->fill(main, {OpKind::gate, static_cast<std::int16_t>(i)}, nullptr, 0, 0);
  }
  backend->synchronize();
  return backend;
}

TEST(DependencyGraph, ShowsTheOrderOfAStep) {
  EXPECT_EQ(to_text(small_step(false, false)->graph().operations()),
            "0 hash @0\n"
            "1 lookup.l1 @1 after 0\n"
            "2 lookup.l14 @1 after 1\n"
            "3 backbone.l0 @0 after 0\n"
            "4 gate.l0 @0 after 1 3\n"
            "5 backbone.l1 @0 after 4\n"
            "6 gate.l1 @0 after 2 5\n");
  EXPECT_EQ(to_text(small_step(true, false)->graph().operations()),
            "0 hash @0\n"
            "1 backbone.l0 @0 after 0\n"
            "2 lookup.l1 @1 after 1\n"
            "3 gate.l0 @0 after 2\n"
            "4 backbone.l1 @0 after 3\n"
            "5 lookup.l14 @1 after 4\n"
            "6 gate.l1 @0 after 5\n");
}

TEST(DependencyGraph, InstrumentationAddsNoDependencyAndAMissingWaitShows) {
  for (const bool at_consume : {false, true}) {
    const auto bare = small_step(at_consume, false)->graph().operations();
    EXPECT_EQ(bare, small_step(at_consume, true)->graph().operations());
    EXPECT_NE(bare, small_step(at_consume, false, true)->graph().operations());
  }
}

TEST(DependencyGraph, TheHostsWaitsOrderWhatItCallsAfterwards) {
  const auto backend = make(plain(), true);
  const StreamId one = backend->create_stream("one");
  const StreamId two = backend->create_stream("two");
  lookup(*backend, one, 1);
  const EventId event = record(*backend, one);
  lookup(*backend, one, 14);
  backbone(*backend, two, 0);
  backend->host_wait(event);
  backbone(*backend, two, 1);
  backend->synchronize();
  backbone(*backend, one, 2);
  EXPECT_EQ(to_text(backend->graph().operations()),
            "0 lookup.l1 @0\n"
            "1 lookup.l14 @0 after 0\n"
            "2 backbone.l0 @1\n"
            "3 backbone.l1 @1 after 0 2\n"
            "4 backbone.l2 @0 after 1 3\n");
  backend->clear_graph();
  backbone(*backend, two, 3);
  EXPECT_EQ(to_text(backend->graph().operations()), "0 backbone.l3 @1\n");
}

TEST(DependencyGraph, HoldsVirtualTimes) {
  const auto backend = small_step(true, false);
  std::vector<std::string> lines;
  for (const GraphNode& node : backend->graph().nodes) {
    if (node.kind != GraphNode::Kind::operation) continue;
    lines.push_back(node.name + " " + std::to_string((node.start_ns - kStartNs) / 1000) + ".." +
                    std::to_string((node.end_ns - kStartNs) / 1000));
  }
  EXPECT_THAT(lines, ElementsAre("hash 0..10", "backbone.l0 10..40", "lookup.l1 40..90", "gate.l0 90..100",
                                 "backbone.l1 100..130", "lookup.l14 130..200", "gate.l1 200..210"));
}

TEST(FakeBackend, TheSameProgramHasTheSameTimes) {
  const auto nodes = [] {
    std::vector<std::int64_t> times;
    const auto backend = small_step(false, true);
    for (const GraphNode& node : backend->graph().nodes) {
      times.insert(times.end(), {node.enqueue_ns, node.start_ns, node.end_ns});
    }
    return times;
  };
  const auto first = nodes();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(nodes(), first);
}

}  // namespace
}  // namespace eb::backend::fake
