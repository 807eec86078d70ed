// Re-rolls with real processes: the life cycle of every table mode, and every way to fail.
#include "harness/supervise/reroll.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <thread>

#include "harness/base/os.h"
#include "harness/supervise/signals.h"
#include "placement/backing.h"

namespace eb::supervise {
namespace {

using control::Stage;

plan::Scenario tiny(plan::TableMode mode, plan::Backing backing) {
  plan::Scenario scenario;
  scenario.name = "test";
  scenario.model.base = engram::preset("tiny");
  scenario.model.backbone.layers = 2;
  scenario.parallel.tp = 2;
  scenario.parallel.dp = 2;
  scenario.parallel.table_mode = mode;
  scenario.device.backend = plan::BackendKind::cpu;
  scenario.storage.backing = backing;
  scenario.storage.policy.kind = plan::PolicyKind::none;
  scenario.storage.policy.text = "none";
  scenario.workload.batches = {plan::Batch{{4}, 2, -1}};
  scenario.seed = 5;
  return scenario;
}

plan::RunLayout layout_of(const plan::Scenario& scenario) {
  return plan::make_layout(scenario, engram::make_geometry(scenario.model.base, scenario.model.table_scale));
}

control::RunSlot slot_of(const plan::Scenario& scenario) {
  control::RunSlot slot;
  slot.slot = 3;
  slot.prefetch_json = plan::to_json(scenario);
  slot.steps = 5;
  return slot;
}

// Stock names whose owner is gone; names of a run beside the test do not count.
int leftovers() { return placement::remove_stale_stock_files(); }

// No child of this process: alive or zombie.
void expect_no_children() { EXPECT_TRUE(::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD); }

std::string error_of(const plan::Scenario& scenario, Exit exit, Options options = {}) {
  try {
    Reroll reroll(scenario, layout_of(scenario), options);
    (void)reroll.run_slot(slot_of(scenario));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), exit) << error.what();
    expect_no_children();
    EXPECT_EQ(leftovers(), 0);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

struct ModeCase {
  const char* name;
  plan::TableMode mode;
  plan::Backing backing;
  plan::PolicyKind policy;
  plan::RegisterOrder order;
  plan::Layout layout;
};

class Modes : public ::testing::TestWithParam<ModeCase> {};

TEST_P(Modes, EveryRankReadsTheContentAfterTheLifeCycle) {
  const ModeCase& c = GetParam();
  plan::Scenario scenario = tiny(c.mode, c.backing);
  scenario.storage.register_order = c.order;
  scenario.storage.layout = c.layout;
  scenario.storage.policy.kind = c.policy;
  if (c.policy == plan::PolicyKind::bind) {
    scenario.storage.policy.nodes = {0};
    scenario.storage.policy.text = "bind:0";
  }
  if (c.policy == plan::PolicyKind::stock) {
    scenario.storage.policy.text = "stock";
    scenario.storage.pretouch = plan::PretouchKind::none;
  }
  Reroll reroll(scenario, layout_of(scenario), {});
  const auto reports = reroll.run_slot(slot_of(scenario));
  ASSERT_EQ(reports.size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    const SlotReport& report = reports[static_cast<std::size_t>(rank)];
    EXPECT_EQ(report.rank, rank);
    ASSERT_EQ(report.events.size(), 5U);
    EXPECT_EQ(report.events[4].time_ns, 1000 * rank + 4);
    EXPECT_NE(report.facts_json, "{\"rows\":0}");
  }
  reroll.snapshot("steady");
  reroll.tear_down();
  expect_no_children();
  EXPECT_EQ(leftovers(), 0);

  std::map<std::string, std::set<int>> snapshots;
  for (const SnapshotReport& snapshot : reroll.storage().snapshots) {
    snapshots[snapshot.label].insert(snapshot.rank);
    EXPECT_NE(snapshot.json.find("\"label\""), std::string::npos);
  }
  const bool stock = c.policy == plan::PolicyKind::stock;
  EXPECT_EQ(snapshots.size(), stock ? 3U : 5U);
  for (const auto& [label, ranks] : snapshots) EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3})) << label;

  // Barriers: no rank starts a stage before the stage before it has ended everywhere.
  std::map<Stage, std::pair<std::int64_t, std::int64_t>> spans;
  for (const StageReport& stage : reroll.storage().stages) {
    auto [span, fresh] = spans.try_emplace(stage.stage, stage.start_ns, stage.end_ns);
    span->second.first = std::min(span->second.first, stage.start_ns);
    span->second.second = std::max(span->second.second, stage.end_ns);
  }
  std::vector<Stage> order = {Stage::map,       Stage::policy, Stage::pretouch,
                              Stage::register_, Stage::load,   Stage::prepare};
  if (stock) order = {Stage::create, Stage::map, Stage::load, Stage::prepare};
  for (std::size_t i = 1; i < order.size(); ++i) {
    ASSERT_TRUE(spans.contains(order[i - 1]) && spans.contains(order[i])) << control::name(order[i]);
    EXPECT_LE(spans[order[i - 1]].second, spans[order[i]].first) << control::name(order[i]);
  }
  EXPECT_EQ(spans.contains(Stage::policy), !stock);
  EXPECT_GT(reroll.storage().ranks_ready_ns, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, Modes,
    ::testing::Values(ModeCase{"shared_shm_bind", plan::TableMode::shared, plan::Backing::shm, plan::PolicyKind::bind,
                               plan::RegisterOrder::concurrent, plan::Layout::split},
                      ModeCase{"shared_memfd_interleaved", plan::TableMode::shared, plan::Backing::memfd,
                               plan::PolicyKind::none, plan::RegisterOrder::serial, plan::Layout::interleaved},
                      ModeCase{"shared_stock", plan::TableMode::shared, plan::Backing::shm, plan::PolicyKind::stock,
                               plan::RegisterOrder::concurrent, plan::Layout::split},
                      ModeCase{"shared_stock_leader_first", plan::TableMode::shared, plan::Backing::shm,
                               plan::PolicyKind::stock, plan::RegisterOrder::leader_first, plan::Layout::split},
                      ModeCase{"private_anon", plan::TableMode::private_, plan::Backing::anon, plan::PolicyKind::bind,
                               plan::RegisterOrder::leader_first, plan::Layout::split},
                      ModeCase{"private_shm", plan::TableMode::private_, plan::Backing::shm, plan::PolicyKind::none,
                               plan::RegisterOrder::concurrent, plan::Layout::split},
                      ModeCase{"dp_sharded_memfd", plan::TableMode::dp_sharded, plan::Backing::memfd,
                               plan::PolicyKind::none, plan::RegisterOrder::concurrent, plan::Layout::split}),
    [](const auto& info) { return info.param.name; });

TEST(Reroll, LeadersAloneCreateSetPolicyPretouchAndLoad) {
  const plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
  Reroll reroll(scenario, layout_of(scenario), {});
  std::map<Stage, std::set<int>> ranks;
  for (const StageReport& stage : reroll.storage().stages) ranks[stage.stage].insert(stage.rank);
  const std::set<int> leaders = {0, 1}, all = {0, 1, 2, 3};
  EXPECT_EQ(ranks[Stage::create], leaders);
  EXPECT_EQ(ranks[Stage::policy], leaders);
  EXPECT_EQ(ranks[Stage::pretouch], leaders);
  EXPECT_EQ(ranks[Stage::load], leaders);
  EXPECT_EQ(ranks[Stage::map], all);
  EXPECT_EQ(ranks[Stage::register_], all);
}

TEST(Reroll, SerialRegistrationNeverOverlaps) {
  plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
  scenario.storage.register_order = plan::RegisterOrder::serial;
  Reroll reroll(scenario, layout_of(scenario), {});
  std::int64_t end = 0;
  for (const StageReport& stage : reroll.storage().stages) {
    if (stage.stage != Stage::register_) continue;
    EXPECT_LE(end, stage.start_ns);
    end = stage.end_ns;
  }
  EXPECT_GT(end, 0);
}

TEST(Reroll, StubHasNoTables) {
  const plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::stub);
  Reroll reroll(scenario, layout_of(scenario), {});
  EXPECT_EQ(reroll.run_slot(slot_of(scenario))[2].facts_json, "{\"rows\":0}");
  EXPECT_TRUE(reroll.storage().snapshots.empty());
}

TEST(Reroll, TwoAtTheSameTime) {
  const plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
  Reroll one(scenario, layout_of(scenario), {});
  Reroll two(scenario, layout_of(scenario), {});
  EXPECT_EQ(one.run_slot(slot_of(scenario)).size(), 4U);
  EXPECT_EQ(two.run_slot(slot_of(scenario)).size(), 4U);
}

TEST(RerollFailure, EveryFailingRankIsNamedWithItsStage) {
  plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
  scenario.fault = {"fail", "before_register", 3, 0};
  expect_part(error_of(scenario, Exit::failure), "rank 3 (dp 1, tp 1): register: planted fault");
}

TEST(RerollFailure, StockGathersErrorsAndUnlinks) {
  plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
  scenario.storage.policy.kind = plan::PolicyKind::stock;
  scenario.storage.policy.text = "stock";
  scenario.storage.pretouch = plan::PretouchKind::none;
  scenario.fault = {"fail", "before_register", 2, 0};
  expect_part(error_of(scenario, Exit::failure), "rank 2 (dp 1, tp 0): register: planted fault");
}

TEST(RerollFailure, KilledRankIsNamedInEachStage) {
  for (const plan::PolicyKind policy : {plan::PolicyKind::none, plan::PolicyKind::stock}) {
    for (const char* stage : {"before_map", "before_register", "during_load", "in_step"}) {
      for (const int rank : {0, 2}) {
        if (rank == 2 && std::string(stage) == "during_load") continue;  // a peer loads nothing
        plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
        scenario.storage.policy.kind = policy;
        if (policy == plan::PolicyKind::stock) {
          scenario.storage.policy.text = "stock";
          scenario.storage.pretouch = plan::PretouchKind::none;
        }
        scenario.fault = {"kill", stage, rank, 0};
        const std::string text = error_of(scenario, Exit::failure);
        expect_part(text, "rank " + std::to_string(rank) + " (dp " + std::to_string(rank / 2) + ", tp 0)");
        expect_part(text, "killed by signal 9");
        EXPECT_EQ(text.find("rank 1"), std::string::npos) << text;  // only who failed
      }
    }
  }
}

TEST(RerollFailure, HangingRankIsNamedAndNotThoseThatWaitForIt) {
  for (const char* stage : {"before_map", "before_register", "during_load", "in_step"}) {
    plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
    scenario.fault = {"hang", stage, 1, 0};
    Options options;
    options.timeout_ms = 1500;  // a busy machine may starve a healthy rank for a while
    const std::string text = error_of(scenario, Exit::failure, options);
    EXPECT_EQ(text.rfind("rank 1 (dp 0, tp 1): ", 0), 0U) << text;
    expect_part(text, "no progress for 1500 ms");
    if (std::string(stage) == "in_step") expect_part(text, "waiting for a peer: rank 0, 2, 3");
  }
}

TEST(RerollFailure, WrongDataWinsOverWhatFollowsFromIt) {
  plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
  scenario.fault = {"fail", "in_step", 1, 0};
  expect_part(error_of(scenario, Exit::bad_data), "rank 1 (dp 0, tp 1): slot 3: layer 0 token 3 column 2 differs");
}

TEST(RerollFailure, SignalEndsTheRun) {
  plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
  scenario.fault = {"hang", "in_step", 0, 0};
  for (const int number : {SIGINT, SIGTERM}) {
    install_signal_handlers();
    std::jthread sender([number] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      ::kill(::getpid(), number);
    });
    expect_part(error_of(scenario, Exit::interrupted), number == SIGINT ? "SIGINT" : "SIGTERM");
    clear_signal();
  }
}

TEST(RerollFailure, TooLittleMemoryIsRefusedBeforeAnythingStarts) {
  plan::Scenario scenario = tiny(plan::TableMode::private_, plan::Backing::anon);
  scenario.model.base = engram::preset("deepseek-v4.1-flash");
  scenario.model.table_scale = 5;
  scenario.parallel.dp = 16;
  const std::string text = error_of(scenario, Exit::failure);
  expect_part(text, "not enough memory");
  expect_part(text, "tables 14.8 TiB");
}

TEST(RerollFailure, NodeThatIsNotThereIsSkipped) {
  plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::shm);
  scenario.storage.policy.kind = plan::PolicyKind::bind;
  scenario.storage.policy.nodes = {777};
  scenario.storage.policy.text = "bind:777";
  expect_part(error_of(scenario, Exit::skipped), "777");
}

TEST(RerollFailure, StockOnMemfdIsRefused) {
  plan::Scenario scenario = tiny(plan::TableMode::shared, plan::Backing::memfd);
  scenario.storage.policy.kind = plan::PolicyKind::stock;
  expect_part(error_of(scenario, Exit::usage), "stock");
}

TEST(CleanStale, RemovesOnlyNamesWhoseOwnerIsGone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::string stale = "/dev/shm/engram_bench_" + std::to_string(child) + "_1_0";
  const UniqueFd file(::open(stale.c_str(), O_CREAT | O_RDWR, 0600));
  ASSERT_TRUE(file);
  clean_stale();
  EXPECT_NE(::access(stale.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace eb::supervise
