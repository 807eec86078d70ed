// The rank's state machine against a fake supervisor at the other end of a socket pair: no process, no step pipeline.
#include "harness/rank/rank_main.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <thread>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/control/channel.h"
#include "harness/engram/content.h"
#include "tests/unit/rank/unused_backend.h"

namespace eb::rank {
namespace {

using control::Stage;

class FakeRegistration : public backend::Registration {
 public:
  FakeRegistration(const std::byte* address, int& live) : address_(address), live_(live) { ++live_; }
  ~FakeRegistration() override { --live_; }
  const std::byte* device_address() const noexcept override { return address_; }

 private:
  const std::byte* address_;
  int& live_;
};

// A backend that only registers; everything else would be a step's.
class RegisterOnly : public test::UnusedBackend {
 public:
  explicit RegisterOnly(int& live) : live_(live) {}
  std::unique_ptr<backend::Registration> register_table(std::byte* address, std::size_t) override {
    return std::make_unique<FakeRegistration>(address, live_);
  }

 private:
  int& live_;
};

class TwoEvents : public SlotRunner {
 public:
  SlotResult run(const control::RunSlot& slot, const plan::Scenario&) override {
    SlotResult result;
    result.events.resize(2);
    result.events[1].slot = slot.slot;
    result.events[1].time_ns = 42;
    result.facts_json = "{}";
    return result;
  }
};

class RankMainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    scenario_.model.base = engram::preset("tiny");
    scenario_.model.backbone.layers = 1;
    scenario_.parallel.tp = 1;
    scenario_.parallel.dp = 2;
    scenario_.storage.backing = plan::Backing::memfd;
    scenario_.name = "test";
    scenario_.storage.policy.text = "none";
    scenario_.workload.batches = {plan::Batch{{4}, 2, -1}};
    progress_fd_ = make_memfd("progress", 2 * sizeof(control::RankProgress));
    progress_ = Mapping::shared(progress_fd_.get(), 2 * sizeof(control::RankProgress), "progress");
    arena_ = make_memfd("arena", 4096);
    auto [a, b] = control::Channel::socket_pair();
    supervisor_ = control::Channel(std::move(a));
    parts_.make_backend = [this](const RankContext&) { return std::make_unique<RegisterOnly>(live_registrations_); };
    parts_.make_runner = [](const RankContext&, backend::Backend&, const TableStorage& storage, const RowReference&) {
      EXPECT_EQ(storage.views().size(), 1U);
      return std::make_unique<TwoEvents>();
    };
    parts_.take_snapshot = [](const RankContext&, const TableStorage& storage, const std::string& label) {
      return label + (storage.mapping() ? ": mapped" : ": nothing");
    };
    rank_ = std::thread([this, end = std::move(b)]() mutable {
      control::Channel channel(std::move(end));
      exit_ = run_rank(channel, parts_);
    });
  }
  void TearDown() override {
    supervisor_.close();
    if (rank_.joinable()) rank_.join();
  }

  void setup(int rank = 0) {
    control::Setup message;
    message.rank = rank;
    message.scenario_json = plan::to_json(scenario_);
    message.arena_bytes = 4096;
    supervisor_.send(message, std::array{arena_.get(), progress_fd_.get()});
  }
  template <typename T>
  std::optional<T> next() {
    last_ = supervisor_.receive_to_supervisor();
    if (!last_) return std::nullopt;
    if (const T* message = std::get_if<T>(&last_->message)) return *message;
    if (const auto* failure = std::get_if<control::Failure>(&last_->message)) {
      ADD_FAILURE() << failure->stage << ": " << failure->text;
    }
    return std::nullopt;
  }
  control::StageDone stage(Stage stage, std::span<const int> fds = {}) {
    supervisor_.send(control::RunStage{stage, {}}, fds);
    return next<control::StageDone>().value();
  }
  const control::RankProgress& progress(int rank) const {
    return reinterpret_cast<const control::RankProgress*>(progress_.data())[rank];
  }

  plan::Scenario scenario_;
  UniqueFd progress_fd_;
  Mapping progress_;
  UniqueFd arena_;
  control::Channel supervisor_;
  RankParts parts_;
  std::thread rank_;
  int live_registrations_ = 0;
  int exit_ = -1;
  std::optional<control::Received<control::ToSupervisor>> last_;
};

TEST_F(RankMainTest, ServesAWholeLifeAndEndsWithStop) {
  setup();
  EXPECT_GT(next<control::Ready>().value().pid, 0);
  stage(Stage::create);
  ASSERT_EQ(last_->fds.size(), 1U);  // the backing
  const UniqueFd backing = std::move(last_->fds[0]);
  stage(Stage::map, std::array{backing.get()});
  supervisor_.send(control::Snapshot{"after_map"});
  EXPECT_EQ(next<control::SnapshotDone>()->json, "after_map: mapped");
  stage(Stage::policy);
  const auto pretouch = stage(Stage::pretouch);
  EXPECT_LE(pretouch.start_ns, pretouch.end_ns);
  EXPECT_EQ(progress(0).stage.load(), static_cast<std::uint32_t>(Stage::pretouch) + 1);
  const std::uint32_t ticks = progress(0).ticks.load();
  stage(Stage::register_);
  EXPECT_EQ(live_registrations_, 1);
  stage(Stage::load);
  EXPECT_GT(progress(0).ticks.load(), ticks);
  stage(Stage::prepare);
  supervisor_.send(control::RunSlot{9, plan::to_json(scenario_), 1, 0, true, false, false, false, false, "", 0});
  const auto slot = next<control::SlotDone>().value();
  EXPECT_EQ(slot.event_count, 2U);
  ASSERT_EQ(last_->fds.size(), 1U);
  const Mapping events = Mapping::shared(last_->fds[0].get(), 2 * sizeof(EventRecord), "events");
  EXPECT_EQ(reinterpret_cast<const EventRecord*>(events.data())[1].time_ns, 42);
  EXPECT_EQ(reinterpret_cast<const EventRecord*>(events.data())[1].slot, 9);
  // What was loaded is in the backing: the first row of the table.
  const engram::Geometry geometry = engram::make_geometry(scenario_.model.base, 1.0);
  std::vector<std::uint8_t> weights(64), scales(2);
  engram::synthetic_row(geometry, scenario_.seed, 0, 0, weights, scales);
  const Mapping table = Mapping::shared(backing.get(), 4096, "table");
  EXPECT_EQ(std::memcmp(table.data(), weights.data(), weights.size()), 0);

  stage(Stage::unregister);
  EXPECT_EQ(live_registrations_, 0);
  stage(Stage::unmap);
  supervisor_.send(control::Stop{});
  rank_.join();
  EXPECT_EQ(exit_, 0);
}

TEST_F(RankMainTest, FailureIsReportedWithItsStageAndExitCode) {
  scenario_.fault = {"fail", "before_register", 1, 0};
  setup(1);
  ASSERT_TRUE(next<control::Ready>());
  const UniqueFd backing = make_memfd("backing", 1 << 20);
  stage(Stage::map, std::array{backing.get()});
  supervisor_.send(control::RunStage{Stage::register_, {}});
  const auto failure = next<control::Failure>().value();
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.stage, "register");
  EXPECT_EQ(failure.exit, 1);
  EXPECT_FALSE(next<control::Ready>());  // and the rank is gone
  rank_.join();
  EXPECT_EQ(exit_, 1);
}

TEST_F(RankMainTest, MessagesOutOfOrderAreFailures) {
  supervisor_.send(control::RunStage{Stage::map, {}});
  EXPECT_NE(next<control::Failure>()->text.find("before Setup"), std::string::npos);
}

TEST_F(RankMainTest, SlotBeforePrepareIsAFailure) {
  setup();
  ASSERT_TRUE(next<control::Ready>());
  supervisor_.send(control::RunSlot{1, plan::to_json(scenario_), 1, 0, true, false, false, false, false, "", 0});
  EXPECT_NE(next<control::Failure>()->text.find("before the stage prepare"), std::string::npos);
}

TEST_F(RankMainTest, EndsWhenTheSupervisorIsGone) {
  setup();
  ASSERT_TRUE(next<control::Ready>());
  supervisor_.close();
  rank_.join();
  EXPECT_EQ(exit_, 1);
}

TEST_F(RankMainTest, ScenarioThatIsNoneIsAFailure) {
  control::Setup message;
  message.scenario_json = "{";
  supervisor_.send(message, std::array{arena_.get(), progress_fd_.get()});
  EXPECT_EQ(next<control::Failure>()->stage, "start");
}

}  // namespace
}  // namespace eb::rank
