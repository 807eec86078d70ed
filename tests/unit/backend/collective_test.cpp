// Collectives through the arena, between processes and between threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/channel.h"
#include "harness/base/error.h"
#include "tests/unit/backend/ranks.h"

namespace eb::backend {
namespace {

using test::As;
using test::group_of;
using test::run_ranks;
using test::SharedArena;

// What `from` sends to `to` (-1: to everybody) in call `call`: words that differ by all of these and by their place.
std::vector<std::byte> message(int from, int to, std::uint64_t call, std::size_t bytes) {
  const std::uint64_t start =
      static_cast<std::uint64_t>(from) * 1'000'003 + static_cast<std::uint64_t>(to) * 7'919 + call * 104'729;
  std::vector<std::uint64_t> words(bytes / 8 + 1);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = (start + i) * 0x9E3779B97F4A7C15U;
  const auto* data = reinterpret_cast<const std::byte*>(words.data());
  return {data, data + bytes};
}

struct Rank {
  std::unique_ptr<Backend> backend;
  StreamId stream{};

  Rank(const SharedArena& arena, const std::vector<GroupSpec>& groups, int rank,
       std::atomic<std::uint32_t>* waiting = nullptr) {
    CpuOptions options;
    options.arena = arena.get();
    options.groups = groups;
    options.rank = rank;
    options.waiting = waiting;
    backend = make_cpu_backend(options);
    stream = backend->create_stream("main");
  }
};

// One call with its check, after which nothing is in flight.
void exchange_and_check(Rank& rank, Communicator& group, const std::vector<int>& ranks, bool gather, std::size_t bytes,
                        std::uint64_t call) {
  const auto members = static_cast<std::size_t>(group.size());
  const int own = ranks[static_cast<std::size_t>(group.index())];
  std::vector<std::byte> send;
  std::vector<std::byte> wanted;
  for (std::size_t other = 0; other < members; ++other) {
    if (!gather || send.empty()) {
      const auto piece = message(own, gather ? -1 : ranks[other], call, bytes);
      send.insert(send.end(), piece.begin(), piece.end());
    }
    const auto piece = message(ranks[other], gather ? -1 : own, call, bytes);
    wanted.insert(wanted.end(), piece.begin(), piece.end());
  }
  std::vector<std::byte> recv(bytes * members + 1, std::byte{0xA5});  // one more: nothing is written behind the end
  wanted.push_back(std::byte{0xA5});
  if (gather) {
    group.all_gather(rank.stream, {OpKind::gather, 1}, send.data(), recv.data(), bytes);
  } else {
    group.all_to_all(rank.stream, {OpKind::expert_exchange, 1}, send.data(), recv.data(), bytes);
  }
  rank.backend->synchronize();
  EXPECT_EQ(std::memcmp(recv.data(), wanted.data(), wanted.size()), 0)
      << (gather ? "gather" : "exchange") << " of " << bytes << " bytes, call " << call;
}

class Collective : public testing::TestWithParam<As> {};
INSTANTIATE_TEST_SUITE_P(As, Collective, testing::Values(As::processes, As::threads),
                         [](const auto& info) { return info.param == As::processes ? "Processes" : "Threads"; });

TEST_P(Collective, RandomSizesBackToBackWithSkewedArrivals) {
  for (const int ranks : {2, 3}) {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    for (int i = 0; i < ranks; ++i) all[static_cast<std::size_t>(i)] = i;
    const std::vector<GroupSpec> groups{{"tp", all, 0}};
    const SharedArena arena(groups);
    run_ranks(GetParam(), ranks, [&](int index) {
      Rank rank(arena, groups, index);
      const auto group = rank.backend->communicator(group_of("tp", all, index));
      std::mt19937_64 sizes(5);                                     // the same in every rank
      std::mt19937_64 skew(static_cast<std::uint64_t>(index) + 1);  // its own
      for (std::uint64_t call = 0; call < 30; ++call) {
        const bool gather = sizes() % 2 == 0;
        const std::size_t bytes = call % 8 == 0 ? 0 : sizes() % (call % 6 == 1 ? 3'000'000 : 20'000);
        if (skew() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(skew() % 2000));
        exchange_and_check(rank, *group, all, gather, bytes, call);
      }
    });
  }
}

TEST_P(Collective, SizesAroundTheSlot) {
  const std::vector<int> all{0, 1};
  const std::vector<GroupSpec> groups{{"tp", all, 0}};
  const SharedArena arena(groups);
  run_ranks(GetParam(), 2, [&](int index) {
    Rank rank(arena, groups, index);
    const auto group = rank.backend->communicator(group_of("tp", all, index));
    std::uint64_t call = 0;
    for (const std::size_t slots : {1, 3}) {
      for (const std::size_t bytes :
           {slots * cpu::kSlotBytes - 1, slots * cpu::kSlotBytes, slots * cpu::kSlotBytes + 1}) {
        exchange_and_check(rank, *group, all, true, bytes, call++);
        exchange_and_check(rank, *group, all, false, bytes / 2, call++);
      }
    }
  });
}

// Nothing waits between the calls: a member can be a round ahead, and must not overwrite what a slow one still reads.
TEST_P(Collective, QueuedCallsDoNotOverwriteEachOther) {
  constexpr std::size_t kCalls = 300;
  constexpr std::size_t kBytes = 3000;
  const std::vector<int> all{0, 1, 2};
  const std::vector<GroupSpec> groups{{"tp", all, 0}};
  const SharedArena arena(groups);
  run_ranks(GetParam(), 3, [&](int index) {
    Rank rank(arena, groups, index);
    const auto group = rank.backend->communicator(group_of("tp", all, index));
    std::vector<std::byte> send;
    std::vector<std::byte> wanted;
    for (std::size_t call = 0; call < kCalls; ++call) {
      for (const int from : all) {
        const auto piece = message(from, -1, call, kBytes);
        wanted.insert(wanted.end(), piece.begin(), piece.end());
        if (from == index) send.insert(send.end(), piece.begin(), piece.end());
      }
    }
    std::vector<std::byte> recv(wanted.size());
    for (std::size_t call = 0; call < kCalls; ++call) {
      if (index == 2 && call % 50 == 0) rank.backend->busy(rank.stream, {OpKind::inject}, 3'000'000);
      group->all_gather(rank.stream, {OpKind::gather}, &send[call * kBytes], &recv[call * kBytes * 3], kBytes);
    }
    rank.backend->synchronize();
    EXPECT_EQ(std::memcmp(recv.data(), wanted.data(), wanted.size()), 0);
  });
}

// TP2 x DP2: {0,1} {2,3} over TP, {0,2} {1,3} over EDP, all over EP; TP and EDP calls run at once on two streams.
TEST_P(Collective, SeveralGroupsAtOnce) {
  const std::vector<GroupSpec> groups{
      {"tp", {0, 1}, 0}, {"tp", {2, 3}, 0}, {"edp", {0, 2}, 0}, {"edp", {1, 3}, 0}, {"ep", {0, 1, 2, 3}, 0}};
  const SharedArena arena(groups);
  run_ranks(GetParam(), 4, [&](int index) {
    Rank rank(arena, groups, index);
    Backend& backend = *rank.backend;
    const StreamId side = backend.create_stream("side");
    const std::vector<int> tp_ranks = index < 2 ? std::vector{0, 1} : std::vector{2, 3};
    const std::vector<int> edp_ranks = index % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3};
    const auto tp = backend.communicator(group_of("tp", tp_ranks, index));
    const auto edp = backend.communicator(group_of("edp", edp_ranks, index));
    const auto ep = backend.communicator(group_of("ep", {0, 1, 2, 3}, index));
    for (int call = 0; call < 100; ++call) {
      const std::int32_t mine = index * 1000 + call;
      std::int32_t from_tp[2] = {};
      std::int32_t from_edp[2] = {};
      tp->all_gather(rank.stream, {OpKind::gather}, reinterpret_cast<const std::byte*>(&mine),
                     reinterpret_cast<std::byte*>(from_tp), 4);
      edp->all_gather(side, {OpKind::row_exchange}, reinterpret_cast<const std::byte*>(&mine),
                      reinterpret_cast<std::byte*>(from_edp), 4);
      backend.synchronize();
      EXPECT_THAT(from_tp, testing::ElementsAre(tp_ranks[0] * 1000 + call, tp_ranks[1] * 1000 + call));
      EXPECT_THAT(from_edp, testing::ElementsAre(edp_ranks[0] * 1000 + call, edp_ranks[1] * 1000 + call));
      if (call % 10 == 0) exchange_and_check(rank, *ep, {0, 1, 2, 3}, false, 5000, static_cast<std::uint64_t>(call));
    }
  });
}

// Nobody leaves a collective before the last has come, and who waits is counted.
TEST_P(Collective, LastArrivalEndsItForAllAndWaitingIsCounted) {
  struct Shared {
    std::atomic<std::uint32_t> waiting[2];
    std::atomic<std::uint32_t> seen;
    std::int64_t start_ns[2];
    std::int64_t end_ns[2];
  };
  const std::vector<int> all{0, 1};
  const std::vector<GroupSpec> groups{{"tp", all, 0}};
  const SharedArena arena(groups);
  auto* shared = new (arena.extra<Shared>(groups)) Shared{};
  run_ranks(GetParam(), 2, [&](int index) {
    Rank rank(arena, groups, index, &shared->waiting[index]);
    Backend& backend = *rank.backend;
    const auto group = backend.communicator(group_of("tp", all, index));
    if (index == 1) {  // comes when rank 0 is seen to wait
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (shared->waiting[0].load() == 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      shared->seen = shared->waiting[0].load();
    }
    const EventId start = backend.new_event();
    const EventId done = backend.new_event();
    std::byte recv[2];
    std::byte send{};
    backend.record(rank.stream, start);
    group->all_gather(rank.stream, {OpKind::gather}, &send, recv, 1);
    backend.record(rank.stream, done);
    backend.synchronize();
    shared->start_ns[index] = backend.times(start).device_ns;
    shared->end_ns[index] = backend.times(done).device_ns;
  });
  EXPECT_EQ(shared->seen, 1U);
  EXPECT_EQ(shared->waiting[0], 0U);
  EXPECT_EQ(shared->waiting[1], 0U);
  EXPECT_LT(shared->start_ns[0], shared->start_ns[1]);
  EXPECT_GE(shared->end_ns[0], shared->start_ns[1]);
  EXPECT_GE(shared->end_ns[1], shared->start_ns[1]);
}

// A sleeper is woken by its peer's arrival. A lost wake would only end when the sleeper next looks by itself, after
// 100 ms.
TEST_P(Collective, SleepersAreWokenAtOnce) {
  constexpr int kCalls = 21;
  struct Shared {
    std::int64_t start_ns[kCalls];
    std::int64_t end_ns[kCalls];
  };
  const std::vector<int> all{0, 1};
  const std::vector<GroupSpec> groups{{"tp", all, 0}};
  const SharedArena arena(groups);
  auto* shared = new (arena.extra<Shared>(groups)) Shared{};
  run_ranks(GetParam(), 2, [&](int index) {
    Rank rank(arena, groups, index);
    const auto group = rank.backend->communicator(group_of("tp", all, index));
    for (int call = 0; call < kCalls; ++call) {
      std::byte send{};
      std::byte recv[2];
      if (index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const EventId event = rank.backend->new_event();
      if (index == 1) rank.backend->record(rank.stream, event);
      group->all_gather(rank.stream, {OpKind::gather}, &send, recv, 1);
      if (index == 0) rank.backend->record(rank.stream, event);
      rank.backend->synchronize();
      (index == 1 ? shared->start_ns : shared->end_ns)[call] = rank.backend->times(event).device_ns;
    }
  });
  std::vector<std::int64_t> delay_ns;
  for (int call = 0; call < kCalls; ++call) delay_ns.push_back(shared->end_ns[call] - shared->start_ns[call]);
  std::nth_element(delay_ns.begin(), delay_ns.begin() + kCalls / 2, delay_ns.end());
  EXPECT_LT(delay_ns[kCalls / 2], 50'000'000);
}

TEST(CollectiveOfOne, CopiesAndNeedsNoArena) {
  const std::vector<GroupSpec> groups{{"tp", {3}, 0}};
  EXPECT_EQ(arena_bytes(groups), 0U);
  CpuOptions options;
  options.groups = groups;
  options.rank = 3;
  const auto backend = make_cpu_backend(options);
  const StreamId stream = backend->create_stream("main");
  const auto group = backend->communicator(groups[0]);
  ASSERT_EQ(group->size(), 1);
  const std::byte send[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::byte gathered[3] = {};
  std::byte exchanged[3] = {};
  group->all_gather(stream, {OpKind::gather}, send, gathered, 3);
  group->all_to_all(stream, {OpKind::gather}, send, exchanged, 3);
  group->all_gather(stream, {OpKind::gather}, nullptr, nullptr, 0);
  backend->synchronize();
  EXPECT_EQ(std::memcmp(gathered, send, 3), 0);
  EXPECT_EQ(std::memcmp(exchanged, send, 3), 0);
}

TEST(CollectiveError, DifferentCallsAreNamedOnBothSides) {
  const std::vector<int> all{0, 1};
  const std::vector<GroupSpec> groups{{"tp", all, 0}};
  const SharedArena arena(groups);
  run_ranks(As::processes, 2, [&](int index) {
    Rank rank(arena, groups, index);
    const auto group = rank.backend->communicator(group_of("tp", all, index));
    std::byte send[64] = {};
    std::byte recv[128];
    group->all_gather(rank.stream, {OpKind::gather, index == 0 ? std::int16_t{1} : std::int16_t{14}}, send, recv, 64);
    try {
      rank.backend->synchronize();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::failure);
      EXPECT_THAT(error.what(), testing::HasSubstr("gather of layer 1 "));
      EXPECT_THAT(error.what(), testing::HasSubstr("gather of layer 14 "));
    }
  });
}

// One stream sleeps in a collective whose peer never comes; another one fails. The sleeper gives up, later work is
// skipped, events still complete, and the first failure is what every wait of the host says.
TEST(CollectiveError, AFailureNamesOperationAndLayerAndStopsTheRest) {
  const std::vector<GroupSpec> groups{{"tp", {0, 1}, 0}};
  const SharedArena arena(groups);
  std::atomic<std::uint32_t> waiting{0};
  Rank rank(arena, groups, 0, &waiting);
  Backend& backend = *rank.backend;
  const StreamId side = backend.create_stream("prefetch");
  const auto group = backend.communicator(groups[0]);
  const EventId done = backend.new_event();
  std::byte send{};
  std::byte recv[2];
  std::byte after{};
  group->all_gather(rank.stream, {OpKind::gather, 1}, &send, recv, 1);
  backend.fill(rank.stream, {OpKind::fill}, &after, 1, 1);
  backend.record(rank.stream, done);
  while (waiting.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  group->all_gather(side, {OpKind::row_exchange, 14}, &send, recv, 1);  // refused: the group is in use
  const std::string wanted =
      "stream prefetch: row_exchange of layer 14: two streams use one group at once; order its collectives by an event";
  for (int i = 0; i < 2; ++i) {
    try {
      if (i == 0) {
        backend.host_wait(done);
      } else {
        backend.synchronize();
      }
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::failure);
      EXPECT_EQ(error.what(), wanted);
    }
  }
  EXPECT_EQ(after, std::byte{0});
  EXPECT_GT(backend.times(done).device_ns, 0);
}

TEST(CollectiveError, GroupsThatTheArenaDoesNotHold) {
  const std::vector<GroupSpec> groups{{"tp", {0, 1}, 0}};
  const SharedArena arena(groups);
  Rank rank(arena, groups, 0);
  EXPECT_THROW((void)rank.backend->communicator({"edp", {0, 1}, 0}), Error);
  EXPECT_THROW((void)rank.backend->communicator({"tp", {0, 2}, 0}), Error);
  EXPECT_THROW((void)rank.backend->communicator({"tp", {0, 1}, 1}), Error);
  CpuOptions options;
  options.groups = groups;
  options.arena = {arena.get().address, arena_bytes(groups) - 1};
  EXPECT_THROW((void)make_cpu_backend(options), Error);
  options.groups = {{"tp", {1, 0}, 0}};
  options.arena = arena.get();
  EXPECT_THROW((void)make_cpu_backend(options), Error);
}

// The peer never comes: the backend still ends, and the queue behind the collective is dropped.
TEST(CollectiveError, DestructionGivesUpAWaitingCollective) {
  const std::vector<GroupSpec> groups{{"tp", {0, 1}, 0}};
  const SharedArena arena(groups);
  std::atomic<std::uint32_t> waiting{0};
  bool ran = false;
  const auto start = std::chrono::steady_clock::now();
  {
    Rank rank(arena, groups, 0, &waiting);
    const auto group = rank.backend->communicator({"tp", {0, 1}, 0});
    std::byte send{};
    std::byte recv[2];
    group->all_gather(rank.stream, {OpKind::gather}, &send, recv, 1);
    rank.backend->fill(rank.stream, {OpKind::fill}, reinterpret_cast<std::byte*>(&ran), 1, 1);
    while (waiting.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(waiting.load(), 0U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace eb::backend
