// storage.backing cuda-host-numa without a GPU: pieces, descriptors, sizes, errors and ownership, on memfds that stand
// in for the driver's memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "harness/backend/fake/stand_in_driver.h"
#include "harness/backend/numa/numa_memory.h"
#include "harness/base/error.h"
#include "harness/control/channel.h"
#include "tests/unit/error_of.h"

namespace eb::backend {
namespace {

using fake::StandInDriver;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGranule = StandInDriver::kGranularity;

std::map<int, std::size_t> bytes_by_node(const std::vector<NumaPiece>& pieces) {
  std::map<int, std::size_t> sums;
  for (const NumaPiece& piece : pieces) sums[piece.node] += piece.bytes;
  return sums;
}

std::vector<NumaPiece> plan(std::size_t bytes, std::vector<std::pair<int, int>> weights) {
  return plan_numa_pieces(bytes, kGranule, weights);
}

TEST(NumaPieces, NodesGetTheirWeightExactly) {
  for (const std::size_t bytes : {std::size_t{1}, 3 * kMiB, 700 * kMiB, 48'000 * kMiB + 5}) {
    for (const auto& weights : std::vector<std::vector<std::pair<int, int>>>{
             {{0, 1}}, {{0, 1}, {1, 1}}, {{0, 1}, {2, 1}, {3, 1}}, {{0, 3}, {1, 1}}, {{1, 6}, {0, 4}}}) {
      const auto pieces = plan(bytes, weights);
      ASSERT_LE(pieces.size(), kMostNumaPieces);
      const auto sums = bytes_by_node(pieces);
      ASSERT_EQ(sums.size(), weights.size());
      std::size_t granules = 0;
      for (const auto& [node, weight] : weights) {
        EXPECT_EQ(sums.at(node) * static_cast<std::size_t>(weights[0].second),
                  sums.at(weights[0].first) * static_cast<std::size_t>(weight));
        granules += static_cast<std::size_t>(weight);
      }
      EXPECT_GE(total_bytes(pieces), bytes);
      EXPECT_LT(total_bytes(pieces), bytes + granules * kGranule);
      for (const NumaPiece& piece : pieces) EXPECT_EQ(piece.bytes % kGranule, 0U);
    }
  }
}

// Both halves of a large table hold what the whole does: one piece a node would put one layer on each.
TEST(NumaPieces, ALargeBackingTakesManyTurns) {
  const auto pieces = plan(64 * 1024 * kMiB, {{0, 1}, {1, 1}});
  ASSERT_EQ(pieces.size(), kMostNumaPieces);
  const std::vector<NumaPiece> half(pieces.begin(), pieces.begin() + kMostNumaPieces / 2);
  EXPECT_EQ(bytes_by_node(half).at(0), bytes_by_node(half).at(1));
}

TEST(NumaPieces, RefusesWhatCannotBeSplit) {
  (void)test::error_of(Exit::usage, [] { (void)plan(kMiB, {}); });
  (void)test::error_of(Exit::usage, [] { (void)plan(kMiB, {{0, 0}}); });
}

std::vector<NumaPiece> two_pieces() { return {{0, kGranule}, {0, 3 * kGranule}}; }

// The way of a run: the leader makes, a message carries descriptors and sizes, the reader maps the same bytes.
TEST(NumaMemory, ReadersSeeTheLeadersBytesThroughAMessage) {
  StandInDriver leader_driver;
  StandInDriver reader_driver;
  auto leader = NumaMemory::create(leader_driver, two_pieces());
  auto [one, other] = control::Channel::socket_pair();
  control::Channel supervisor(std::move(one));
  control::Channel rank(std::move(other));
  {
    const std::vector<UniqueFd> fds = leader->export_descriptors();
    std::vector<int> numbers;
    control::RunStage message{control::Stage::map, {}, {}};
    for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
    for (const NumaPiece& piece : leader->pieces()) message.pieces.push_back({piece.node, piece.bytes});
    supervisor.send(control::ToRank(message), numbers);
  }
  auto received = rank.receive_to_rank().value();
  const auto& message = std::get<control::RunStage>(received.message);
  ASSERT_EQ(received.fds.size(), 2U);
  std::vector<NumaPiece> pieces;
  for (const control::TablePiece& piece : message.pieces) pieces.push_back({piece.node, piece.bytes});
  EXPECT_EQ(pieces, two_pieces());
  auto reader = NumaMemory::import(reader_driver, pieces, received.fds);
  received.fds.clear();  // the memory holds on to what they led to
  leader->map();
  reader->map();
  ASSERT_EQ(reader->size(), 4 * kGranule);
  std::memset(leader->data(), 0x5A, leader->size());
  EXPECT_EQ(std::memcmp(leader->data(), reader->data(), leader->size()), 0);
  leader.reset();
  EXPECT_EQ(leader_driver.live_handles(), 0U);
  EXPECT_EQ(reader->data()[reader->size() - 1], std::byte{0x5A});  // the leader's end takes nothing away
  reader->allow_device();
  EXPECT_EQ(reader_driver.device_bytes(), 4 * kGranule);
}

TEST(NumaMemory, AsManyPiecesAsAMessageHas) {
  StandInDriver driver;
  const auto memory = NumaMemory::create(driver, std::vector<NumaPiece>(kMostNumaPieces, {0, kGranule}));
  auto [one, other] = control::Channel::socket_pair();
  control::Channel supervisor(std::move(one));
  control::Channel rank(std::move(other));
  const auto fds = memory->export_descriptors();
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  supervisor.send(control::ToRank(control::RunStage{control::Stage::map, {}, {}}), numbers);
  EXPECT_EQ(rank.receive_to_rank().value().fds.size(), kMostNumaPieces);
}

// A descriptor does not tell its size: a wrong one beside it is found, and nothing stays behind.
TEST(NumaMemory, AWrongSizeIsRefused) {
  StandInDriver driver;
  const auto leader = NumaMemory::create(driver, two_pieces());
  StandInDriver reader_driver;
  const auto reader =
      NumaMemory::import(reader_driver, {{0, 2 * kGranule}, {0, 3 * kGranule}}, leader->export_descriptors());
  EXPECT_THAT(test::error_of(Exit::failure, [&] { reader->map(); }), testing::HasSubstr("map piece 0 of 2"));
  EXPECT_EQ(reader->data(), nullptr);
  EXPECT_EQ(reader_driver.reserved_bytes(), 0U);
}

TEST(NumaMemory, DescriptorsAndPiecesMustAgree) {
  StandInDriver driver;
  const auto leader = NumaMemory::create(driver, two_pieces());
  auto fds = leader->export_descriptors();
  fds.pop_back();
  EXPECT_THAT(test::error_of(Exit::failure, [&] { (void)NumaMemory::import(driver, two_pieces(), fds); }),
              testing::HasSubstr("1 descriptors came for 2 pieces"));
}

// Every call of the driver, failing at its first and second time: the error names the piece and the driver's reason,
// and all that was made before is given back.
TEST(NumaMemory, EveryRefusalIsNamedAndUndone) {
  const std::pair<const char*, const char*> calls[] = {
      {"create", "allocate"}, {"export", "export the descriptor of"}, {"import", "import the descriptor of"},
      {"map", "map"},         {"allow_host", "let the host use"},     {"allow_device", "let the device use"}};
  for (const auto& [call, words] : calls) {
    for (int n = 0; n < 2; ++n) {
      StandInDriver driver;
      driver.fail_at(call, n, ENOMEM);
      const std::string text = test::error_of(Exit::failure, [&] {
        const auto leader = NumaMemory::create(driver, two_pieces());
        const auto reader = NumaMemory::import(driver, two_pieces(), leader->export_descriptors());
        reader->map();
        reader->allow_device();
      });
      EXPECT_THAT(text, testing::HasSubstr(fmt::format("cuda-host-numa: {} piece {} of 2", words, n))) << call;
      EXPECT_THAT(text, testing::HasSubstr(std::strerror(ENOMEM))) << call;
      EXPECT_THAT(text, testing::HasSubstr("NUMA node 0")) << call;
      EXPECT_EQ(driver.live_handles(), 0U) << call;
      EXPECT_EQ(driver.live_bytes(), 0U) << call;
      EXPECT_EQ(driver.reserved_bytes(), 0U) << call;
    }
  }
  StandInDriver driver;
  driver.fail_at("reserve", 0, ENOMEM);
  const auto memory = NumaMemory::create(driver, two_pieces());
  EXPECT_THAT(test::error_of(Exit::failure, [&] { memory->map(); }), testing::HasSubstr("address space"));
}

}  // namespace
}  // namespace eb::backend
