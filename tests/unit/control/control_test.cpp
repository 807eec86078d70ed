// Encoding and the channel: every message survives the way, descriptors stay with their message, a broken peer is an
// error and never a hang.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/control/channel.h"
#include "harness/control/encoding.h"

namespace eb::control {
namespace {

struct Ends {
  Channel supervisor;
  Channel rank;
};
Ends make_ends() {
  auto [a, b] = Channel::socket_pair();
  return {Channel(std::move(a)), Channel(std::move(b))};
}

template <typename T>
T through_rank(const T& message) {
  Ends ends = make_ends();
  ends.supervisor.send(ToRank(message));
  return std::get<T>(ends.rank.receive_to_rank().value().message);
}

template <typename T>
T through_supervisor(const T& message) {
  Ends ends = make_ends();
  ends.rank.send(ToSupervisor(message));
  return std::get<T>(ends.supervisor.receive_to_supervisor().value().message);
}

TEST(Encoding, SetupKeepsEveryField) {
  const control::Setup got =
      through_rank(control::Setup{3, R"({"a":1})", 1ULL << 40, {0, 5}, {1}, 1, 6, {0, 0, 1}, false});
  EXPECT_EQ(got.rank, 3);
  EXPECT_EQ(got.scenario_json, R"({"a":1})");
  EXPECT_EQ(got.arena_bytes, 1ULL << 40);
  EXPECT_EQ(got.allowed_cpus, (std::vector<int>{0, 5}));
  EXPECT_EQ(got.memory_nodes, (std::vector<int>{1}));
  EXPECT_EQ(got.numa_node, 1);
  EXPECT_EQ(got.device, 6);
  EXPECT_EQ(got.rank_nodes, (std::vector<int>{0, 0, 1}));
  EXPECT_FALSE(got.instrument);
  EXPECT_FALSE(got.allow_degraded);
}

TEST(Encoding, EveryStageHasItsOwnName) {
  for (const Stage stage : {Stage::create, Stage::map, Stage::policy, Stage::pretouch, Stage::register_, Stage::load,
                            Stage::prepare, Stage::unregister, Stage::unmap, Stage::stock_open, Stage::digest}) {
    EXPECT_EQ(through_rank(RunStage{stage, "/dev/shm/x"}).stage, stage);
    EXPECT_EQ(through_supervisor(StageDone{stage, 1, 2, 3, 4, "n", 5, 6}).stage, stage);
  }
  EXPECT_STREQ(name(Stage::register_), "register");
  EXPECT_STREQ(name(Stage::stock_open), "stock_open");
}

TEST(Encoding, PiecesTravelBothWays) {
  const std::vector<TablePiece> pieces{{0, 1ULL << 40}, {3, 2097152}};
  EXPECT_EQ(through_rank(RunStage{Stage::map, "", pieces}).pieces, pieces);
  EXPECT_EQ(through_supervisor(StageDone{Stage::create, 1, 2, 3, 4, "", -1, -1, pieces}).pieces, pieces);
  EXPECT_EQ(through_supervisor(SlotDone{1, 0, "{}", "{\"spans\":[]}"}).trace_json, "{\"spans\":[]}");
}

TEST(Encoding, RunSlotAndAnswers) {
  const RunSlot slot =
      through_rank(RunSlot{7, "{}", 200, 1LL << 40, false, true, true, true, true, "lookup", 10, true, true});
  EXPECT_EQ(slot.slot, 7);
  EXPECT_EQ(slot.steps, 200);
  EXPECT_EQ(slot.first_step, 1LL << 40);
  EXPECT_FALSE(slot.timed);
  EXPECT_TRUE(slot.check);
  EXPECT_TRUE(slot.check_hidden);
  EXPECT_TRUE(slot.control);
  EXPECT_TRUE(slot.observed);
  EXPECT_TRUE(slot.trace);
  EXPECT_EQ(slot.inject_stage, "lookup");
  EXPECT_TRUE(slot.bare);
  EXPECT_EQ(slot.inject_percent, 10);
  EXPECT_EQ(through_rank(Snapshot{"after_map"}).label, "after_map");
  EXPECT_EQ(through_supervisor(Ready{42}).pid, 42);
  EXPECT_EQ(through_supervisor(Ready{42, {{"CPUs", "CPUs 1"}}}).binding_lost,
            (std::vector<LostPart>{{"CPUs", "CPUs 1"}}));
  control::Setup degraded;
  degraded.allow_degraded = true;
  EXPECT_TRUE(through_rank(degraded).allow_degraded);
  const StageDone done = through_supervisor(StageDone{Stage::load, 10, 20, 30, 40, "note", 50, 60});
  EXPECT_EQ(done.start_ns, 10);
  EXPECT_EQ(done.end_ns, 20);
  EXPECT_EQ(done.minor_faults, 30);
  EXPECT_EQ(done.major_faults, 40);
  EXPECT_EQ(done.note, "note");
  EXPECT_EQ(through_supervisor(SlotDone{7, 1000000, "{\"x\":1}"}).event_count, 1000000U);
  EXPECT_EQ(through_supervisor(SlotDone{7, 1, "{}", "", 40}).window_launches, 40);
  const Failure failure = through_supervisor(Failure{2, "register", "no memory", 1});
  EXPECT_EQ(failure.stage, "register");
  EXPECT_EQ(failure.text, "no memory");
}

TEST(Encoding, ErrorTextThatIsNoUtf8StillArrives) {
  const Failure failure = through_supervisor(Failure{0, "map", "path \xff\xfe!", 1});
  EXPECT_NE(failure.text.find("path "), std::string::npos);
}

TEST(Encoding, RefusesWrongDirectionTypeAndPayload) {
  EXPECT_THROW((void)decode_to_supervisor(0, "{}"), Error);
  EXPECT_THROW((void)decode_to_rank(99, "{}"), Error);
  EXPECT_THROW((void)decode_to_rank(0, "{}"), Error);                             // no fields
  EXPECT_THROW((void)decode_to_rank(1, R"({"stage":"melt","path":""})"), Error);  // unknown stage
  EXPECT_THROW((void)decode_to_rank(2, R"({"label":7})"), Error);                 // wrong type
  EXPECT_THROW((void)decode_to_rank(2, "{"), Error);                              // no JSON
}

TEST(Channel, DescriptorsStayWithTheirMessage) {
  Ends ends = make_ends();
  const UniqueFd one = make_memfd("one", 1), two = make_memfd("two", 2), three = make_memfd("three", 3);
  ends.rank.send(ToSupervisor(StageDone{Stage::create, 0, 0, 0, 0, "", -1, -1}), std::array{one.get()});
  ends.rank.send(ToSupervisor(Ready{1}));
  ends.rank.send(ToSupervisor(SlotDone{1, 0, ""}), std::array{two.get(), three.get()});
  const auto size_of = [](const UniqueFd& fd) { return ::lseek(fd.get(), 0, SEEK_END); };
  const auto first = ends.supervisor.receive_to_supervisor();
  const auto second = ends.supervisor.receive_to_supervisor();
  const auto third = ends.supervisor.receive_to_supervisor();
  ASSERT_EQ(first->fds.size(), 1U);
  EXPECT_EQ(size_of(first->fds[0]), 1);
  EXPECT_TRUE(second->fds.empty());
  ASSERT_EQ(third->fds.size(), 2U);
  EXPECT_EQ(size_of(third->fds[0]), 2);
  EXPECT_EQ(size_of(third->fds[1]), 3);
}

TEST(Channel, LargeMessageArrivesWhole) {
  Ends ends = make_ends();
  const std::string text(5'000'000, 'x');
  std::thread sender([&] { ends.rank.send(ToSupervisor(SnapshotDone{"steady", text})); });
  const auto got = ends.supervisor.receive_to_supervisor();
  sender.join();
  EXPECT_EQ(std::get<SnapshotDone>(got->message).json, text);
}

TEST(Channel, TryReceiveNeverBlocksOnHalfAMessage) {
  auto [a, b] = Channel::socket_pair();
  Channel supervisor(std::move(a));
  const std::string payload = R"({"pid":77,"binding_lost":[]})";
  const std::uint64_t header[2] = {payload.size(), 16};  // a Ready
  ASSERT_EQ(::send(b.get(), header, sizeof header, 0), 16);
  ASSERT_EQ(::send(b.get(), payload.data(), 7, 0), 7);
  EXPECT_FALSE(supervisor.try_receive_to_supervisor());
  EXPECT_FALSE(supervisor.closed());
  const auto rest = static_cast<ssize_t>(payload.size() - 7);
  ASSERT_EQ(::send(b.get(), payload.data() + 7, payload.size() - 7, 0), rest);
  EXPECT_EQ(std::get<Ready>(supervisor.try_receive_to_supervisor()->message).pid, 77);
}

TEST(Channel, PeerThatDiedMidMessageIsClosedNotAMessage) {
  auto [a, b] = Channel::socket_pair();
  Channel supervisor(std::move(a));
  const std::uint64_t header[2] = {10, 16};
  ASSERT_EQ(::send(b.get(), header, sizeof header, 0), 16);
  b.reset();
  EXPECT_FALSE(supervisor.receive_to_supervisor());
  EXPECT_TRUE(supervisor.closed());
  EXPECT_THROW(supervisor.send(ToRank(Stop{})), Error);  // and no SIGPIPE
}

TEST(Channel, AbsurdHeaderIsAnError) {
  auto [a, b] = Channel::socket_pair();
  Channel supervisor(std::move(a));
  const std::uint64_t header[2] = {~0ULL, 16};
  ASSERT_EQ(::send(b.get(), header, sizeof header, 0), 16);
  EXPECT_THROW((void)supervisor.receive_to_supervisor(), Error);
}

TEST(Channel, MessagesSentBeforeTheEndCloseAreRead) {
  Ends ends = make_ends();
  ends.rank.send(ToSupervisor(Failure{1, "map", "x", 1}));
  ends.rank.close();
  EXPECT_TRUE(ends.supervisor.receive_to_supervisor());
  EXPECT_FALSE(ends.supervisor.receive_to_supervisor());
}

}  // namespace
}  // namespace eb::control
