#include "harness/result/run_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/result/verify.h"
#include "tests/unit/result/support.h"

namespace eb::result {
namespace {

namespace fs = std::filesystem;

class Writer : public ::testing::Test {
 protected:
  // `times` of each re-roll's ranks, by its number.
  Json run(const std::string& name, int node = 0, const std::function<TinyTimes(int)>& times = {}) {
    int reroll = 0;
    RunFolder folder(base / name, false);
    RunWriter writer(folder, run_input(plan));
    measure::run_experiment(
        plan, measure::make_schedule(plan), run_input(plan).layouts,
        [&](const plan::Scenario&, const plan::RunLayout& layout) {
          const int number = reroll++;
          return std::make_unique<TinyExecutor>(layout, node, times ? times(number) : TinyTimes{});
        },
        writer);
    writer.finish();
    return Json::parse(read_file(base / name + "/result.json"));
  }
  const Json& cell(const Json& result, const std::string& arm, const std::string& metric) {
    for (const Json& one : result["cells"]) {
      if (one["arm"] == arm && one["metric"] == metric) return one;
    }
    ADD_FAILURE() << metric;
    return result["cells"][0];
  }
  TemporaryFolder base;
  plan::Plan plan = tiny_plan();
};

TEST_F(Writer, ACompleteRunVerifies) {
  const Json result = run("run");
  EXPECT_EQ(result["complete"], true);
  EXPECT_EQ(result["checks"]["passed"], true);
  EXPECT_EQ(result["comparisons"][0]["text"], "no verdict: one re-roll");
  EXPECT_EQ(result["hypotheses"].size(), 4U);
  EXPECT_TRUE(result["failures"].empty());
  const VerifyReport report = verify(base / "run");
  EXPECT_TRUE(report.complete);
  // Two arms, two blocks of ABBA, two steps a slot: 8 timed slots of 2 steps on 4 ranks, 18 records a step.
  EXPECT_EQ(report.events, 8U * 2U * 4U * 18U);
}

TEST_F(Writer, CellsHoldFiguresAndReasons) {
  const Json result = run("run");
  const Json& lookup = cell(result, "A", "lookup_us.l0");
  EXPECT_EQ(lookup["n"], 4 * 2 * 2);  // 4 slots an arm, 2 steps, 2 replicas
  EXPECT_DOUBLE_EQ(lookup["median"].get<double>(), 0.7805);
  EXPECT_EQ(lookup["blocks"].size(), 2U);
  EXPECT_EQ(lookup["per_rank"].size(), 4U);
  EXPECT_TRUE(lookup["p95"]["value"].is_null());
  EXPECT_EQ(lookup["p95"]["reason"], "p95 needs 72 samples, found 16");
  const Json& ids = cell(result, "A", "ids_us");
  EXPECT_TRUE(ids["median"].is_null());
  EXPECT_EQ(ids["n"], 0);
  EXPECT_FALSE(ids["reason"].get<std::string>().empty());
}

const Json& observed_cost(const Json& result, std::size_t arm) {
  return result["observed_pass"]["cost"][arm]["observed_over_timed_step"];
}

TEST_F(Writer, TheObservedPassIsKeptApartAndItsCostIsANumber) {
  plan = plan::parse_plan(plan.expanded_json, ".", {{"experiment.pairs", "2"}});
  const Json plain = run("plain", 0, [](int) { return TinyTimes{0, 0, false}; });
  const Json result = run("run", 0, [](int) { return TinyTimes{0, 400, false}; });
  const Json& pass = result["observed_pass"];
  ASSERT_EQ(pass["slots"].size(), 4U) << "one an arm in each of two re-rolls";
  const Json& slot = pass["slots"][0];
  EXPECT_NEAR(slot["timed_step_us_median"].get<double>(), 2.0035, 1e-9);
  EXPECT_NEAR(slot["observed_step_us_median"].get<double>(), 2.4035, 1e-9);
  EXPECT_NEAR(observed_cost(result, 0)["value"].get<double>(), 2.4035 / 2.0035, 1e-9);
  EXPECT_NEAR(observed_cost(plain, 0)["value"].get<double>(), 1, 1e-12);
  // Its steps are in no cell, no event array and no sample.
  EXPECT_EQ(result["cells"], plain["cells"]);
  EXPECT_EQ(result["comparisons"], plain["comparisons"]);
  EXPECT_EQ(verify(base / "run").events, verify(base / "plain").events);
  EXPECT_FALSE(fs::is_empty(base / "run/observed"));
  // Both sides' collectors are listed.
  EXPECT_EQ(slot["collectors"][0]["name"], "numa_maps");
  const Json& of_rank = slot["collectors"][slot["collectors"].size() - 4];  // four ranks
  EXPECT_EQ(of_rank["name"], "ranges");
  EXPECT_EQ(of_rank["rank"], 0);
  EXPECT_EQ(of_rank["seen"]["ranges"], 7);
}

TEST_F(Writer, APassThatReplaysKernelsGivesNoTimes) {
  plan = plan::parse_plan(plan.expanded_json, ".", {{"experiment.pairs", "2"}});
  const Json result = run("run", 0, [](int) { return TinyTimes{0, 400, true}; });
  for (const Json& slot : result["observed_pass"]["slots"]) {
    EXPECT_EQ(slot["kernel_replay"], true);
    EXPECT_TRUE(slot["observed_step_us_median"]["value"].is_null());
    EXPECT_NE(slot["observed_step_us_median"]["reason"].get<std::string>().find("kernel_replay"), std::string::npos);
  }
  EXPECT_TRUE(observed_cost(result, 0)["value"].is_null());
  EXPECT_TRUE(fs::is_empty(base / "run/observed"));
  (void)verify(base / "run");
}

TEST_F(Writer, WithoutAnObservedPassNothingIsSaidOfIt) {
  plan.experiment.observed_pass = false;
  const Json result = run("run");
  EXPECT_EQ(result["observed_pass"]["asked"], false);
  EXPECT_TRUE(result["observed_pass"]["slots"].empty());
}

TEST_F(Writer, PairsEndWhereTheIntervalIsNarrowEnoughAndNeverBeforeSix) {
  plan = plan::parse_plan(plan.expanded_json, ".", {{"experiment.pairs", "20"}, {"experiment.stop", "precision"}});
  const Json result = run("run");
  EXPECT_EQ(result["evidence"]["stop"]["rule"], "precision");
  EXPECT_EQ(result["evidence"]["stop"]["pairs_made"], 6) << "equal times are narrow from the second pair on";
  EXPECT_EQ(result["comparisons"][0]["primary"]["pairs"], 6);
  EXPECT_EQ(result["comparisons"][0]["pairs"], 20) << "as planned";
  EXPECT_EQ(result["evidence"]["pairs"].size(), 6U);
  EXPECT_EQ(result["complete"], true);
  (void)verify(base / "run");
}

TEST_F(Writer, PairsGoOnWhileTheIntervalIsWide) {
  plan = plan::parse_plan(plan.expanded_json, ".", {{"experiment.pairs", "9"}, {"experiment.stop", "precision"}});
  // The effect is plain (about +40 %), so a rule that looked at p would stop; its size is not known within delta.
  const Json result = run("run", 0, [](int reroll) { return TinyTimes{300 + (reroll % 3) * 60, 0, false}; });
  EXPECT_EQ(result["evidence"]["stop"]["pairs_made"], 9);
  EXPECT_GT(result["evidence"]["stop"]["half_width_log"].get<double>(), std::log1p(0.02) / 2);
  EXPECT_LT(result["comparisons"][0]["primary"]["t_test_p"].get<double>(), 1e-4);
  (void)verify(base / "run");
}

TEST_F(Writer, CoresidentArmsHaveTheirOwnPagesAndMatchedBlocks) {
  plan = plan::parse_plan(plan.expanded_json, ".",
                          {{"experiment.factor", "storage.policy"},
                           {"experiment.arms", R"({"none": "none", "node0": "bind:0"})"},
                           {"experiment.coresident", "true"},
                           {"experiment.pairs", "2"}});
  const Json result = run("run");
  EXPECT_EQ(result["evidence"]["pairs"][1]["rerolls"], (Json{{"none", 1}, {"node0", 1}})) << "blocks of one re-roll";
  EXPECT_EQ(result["evidence"]["pages"]["one_allocation"], false);
  EXPECT_EQ(result["ledger"].size(), 4U) << "each allocation has its own";
  for (const char* name : {"reroll-0-arm-0", "reroll-0-arm-1"}) {
    EXPECT_TRUE(fs::exists(base / "run/placement/" + name + "/steady-rank-3.json")) << name;
  }
  EXPECT_EQ(result["comparisons"][0]["primary"]["pairs"], 2);
  (void)verify(base / "run");
}

TEST_F(Writer, LedgerCountsEachBackingOnce) {
  const Json result = run("run");
  const Json& ledger = result["ledger"][0];
  std::int64_t expected = 0;
  const plan::RunLayout layout = run_input(plan).layouts[0];
  for (const plan::BackingPlace& one : layout.backings) expected += one.bytes;
  EXPECT_EQ(ledger["backing_bytes"], expected);
  EXPECT_EQ(ledger["observed"]["backing_allocated_bytes"], expected);  // four mappings of two backings
  EXPECT_EQ(ledger["observed"]["pss_bytes"], expected);
  EXPECT_EQ(ledger["observed"]["backings_counted"], 2);
  EXPECT_EQ(ledger["deviation"]["pss"], 0.0);
}

TEST_F(Writer, OversubscriptionIsAWarningWithANextStep) {
  const Json result = run("run");  // 4 ranks of 3 threads on 2 CPUs
  bool found = false;
  for (const Json& warning : result["warnings"]) {
    if (warning["code"] != "oversubscribed") continue;
    found = true;
    EXPECT_EQ(warning["figures"]["runnable_threads"], 12);
    EXPECT_EQ(warning["figures"]["allowed_cpus"], 2);
    EXPECT_FALSE(warning["next_step"].get<std::string>().empty());
  }
  EXPECT_TRUE(found);
}

TEST_F(Writer, WorkIsAddedOverTimedSlots) {
  const Json result = run("run");
  const Json& rank = result["arms"][0]["work_per_rank"][0];
  EXPECT_EQ(rank["steps"], 8);
  EXPECT_EQ(rank["lookups"][0]["rows"], 16 * 8);
  EXPECT_EQ(rank["lookups"][0]["rows_last_step"], 16);
  EXPECT_EQ(rank["lookups"][0]["tiles_max"], 1);
  EXPECT_EQ(rank["collectives"][0]["calls"], 8);
  EXPECT_EQ(result["arms"][0]["replicas_uncoupled"], true);
}

TEST_F(Writer, RawSnapshotsAreKept) {
  (void)run("run");
  const Json raw = Json::parse(read_file(base / "run/placement/reroll-0/steady-rank-3.json"));
  EXPECT_FALSE(raw["mapping"]["raw_numa_maps"].empty());
}

// bind:0 was asked for, the pages are seen on node 1: a failure, not a warning.
TEST_F(Writer, APolicyThatWasNotObtainedIsAFailure) {
  plan = plan::parse_plan(plan.expanded_json, ".", {{"storage.policy", "\"bind:0\""}});
  try {
    (void)run("run", 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::failure);
    EXPECT_NE(std::string(error.what()).find("bind:0"), std::string::npos);
  }
}

TEST_F(Writer, AFailedCheckLeavesNoFigures) {
  RunFolder folder(base / "run", false);
  RunWriter writer(folder, run_input(plan));
  class Broken final : public measure::Executor {
   public:
    explicit Broken(const plan::RunLayout& layout) : inner_(layout) {}
    std::vector<supervise::SlotReport> run_slot(const control::RunSlot& slot) override {
      if (timed_ > 5 && slot.check) fail(Exit::bad_data, "rank 2: layer 0, token 1, column 3 differs");
      timed_ += slot.timed ? 1 : 0;
      return inner_.run_slot(slot);
    }
    void snapshot(const std::string& label) override { inner_.snapshot(label); }
    void tear_down() override {}
    const supervise::StorageReport& storage() const noexcept override { return inner_.storage(); }

   private:
    TinyExecutor inner_;
    int timed_ = 0;
  };
  try {
    measure::run_experiment(
        plan, measure::make_schedule(plan), run_input(plan).layouts,
        [](const plan::Scenario&, const plan::RunLayout& layout) { return std::make_unique<Broken>(layout); }, writer);
    FAIL();
  } catch (const Error& error) {
    writer.finish_failed(error.what(), error.exit());
  }
  const Json result = Json::parse(read_file(base / "run/result.json"));
  EXPECT_EQ(result["complete"], false);
  EXPECT_EQ(result["checks"]["passed"], false);
  EXPECT_TRUE(result["cells"].empty());
  EXPECT_TRUE(result["comparisons"].empty());
  EXPECT_FALSE(fs::exists(base / "run/samples"));
  EXPECT_EQ(result["failures"][0]["exit"], 5);
  EXPECT_EQ(result["failures"][0]["text"], "rank 2: layer 0, token 1, column 3 differs");
  EXPECT_NE(result["failures"][0]["during"].get<std::string>().find("arm"), std::string::npos);
  EXPECT_TRUE(fs::exists(base / "run/failures/failure-0.json"));
  EXPECT_FALSE(verify(base / "run").complete);
}

TEST_F(Writer, BeforeTheEndTheResultSaysThatItIsNotComplete) {
  RunFolder folder(base / "run", false);
  const RunWriter writer(folder, run_input(plan));
  EXPECT_EQ(Json::parse(read_file(base / "run/result.json"))["complete"], false);
  try {
    (void)verify(base / "run");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_data);
  }
}

// Which of `blocks` blocks of `block_ns` each renew a result.json that takes 10 ns.
std::vector<int> renewed(int blocks, std::int64_t block_ns) {
  Renewal renewal;
  std::vector<int> out;
  std::int64_t now = 1000;
  for (int block = 1; block <= blocks; ++block) {
    now += block_ns;
    if (!renewal.due(now)) continue;
    renewal.written(now, now + 10);
    now += 10;
    out.push_back(block);
  }
  return out;
}

TEST(Renewal, TakesATwentiethOfTheTimeOrWaitsForTwiceAsManyBlocks) {
  EXPECT_EQ(renewed(5, 190), (std::vector{1, 2, 3, 4, 5})) << "long blocks: after each";
  EXPECT_EQ(renewed(12, 64), (std::vector{1, 2, 4, 7, 10})) << "three of these make a nineteenth";
  EXPECT_EQ(renewed(40, 0), (std::vector{1, 2, 4, 8, 16, 32}));
}

TEST_F(Writer, AFirstBlockIsInTheResultAtOnce) {
  RunFolder folder(base / "run", false);
  RunWriter writer(folder, run_input(plan));
  const auto schedule = measure::make_schedule(plan);
  writer.reroll_starting(schedule[0]);
  writer.slot_done({}, {}, {});
  writer.block_done(schedule[0], 0);
  EXPECT_EQ(read_file(base / "run/result.json"), writer.result_text());
  EXPECT_EQ(Json::parse(writer.result_text())["slots"].size(), 1U);
}

TEST_F(Writer, VerifyFindsAChangedByteALostFileAndAnAlteredCell) {
  (void)run("run");
  const std::string events = read_file(base / "run/events/rank-1.npy");
  std::string changed = events;
  changed[700] = static_cast<char>(changed[700] ^ 1);
  write_file_atomic(base / "run/events/rank-1.npy", changed);
  EXPECT_THROW((void)verify(base / "run"), Error);
  write_file_atomic(base / "run/events/rank-1.npy", events);
  EXPECT_NO_THROW((void)verify(base / "run"));
  fs::rename(base / "run/samples/reroll-0-block-1.jsonl", base / "gone");
  EXPECT_THROW((void)verify(base / "run"), Error);
  fs::rename(base / "gone", base / "run/samples/reroll-0-block-1.jsonl");
  write_file_atomic(base / "run/extra.txt", std::string("x"));
  EXPECT_THROW((void)verify(base / "run"), Error);
  fs::remove(base / "run/extra.txt");
  // A median that its samples do not give, with hashes that are right.
  std::string text = read_file(base / "run/result.json");
  const std::size_t at = text.find("\"median\": 0.");
  text.replace(at, 12, "\"median\": 1.");
  RunFolder forged(base / "forged", false);
  for (const std::string& name : run_files(base / "run")) {
    if (name != "result.json") forged.write(name, read_file(base / "run/" + name));
  }
  forged.seal(text);
  try {
    (void)verify(base / "forged");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("median"), std::string::npos);
  }
}

// 1,000,000 events: files written in under 2 s, with less than 500 MB more memory.
TEST_F(Writer, AMillionEventsAreWrittenInTime) {
  RunFolder folder(base / "run", false);
  RunWriter writer(folder, run_input(plan));
  const auto schedule = measure::make_schedule(plan);
  writer.reroll_starting(schedule[0]);
  const plan::RunLayout layout = run_input(plan).layouts[0];
  writer.reroll_ready(schedule[0], tiny_storage(layout, {"after_load"}));
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  constexpr std::int64_t kSteps = 1'000'000 / (4 * 18) + 1;
  std::vector<supervise::SlotReport> reports;
  std::vector<std::vector<measure::RankStep>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    reports.push_back(tiny_report(rank, 0, kSteps, false));
    ranks.push_back(measure::build_timeline(reports.back().events, true, rank));
  }
  const auto values = measure::StepMetrics(layout, {0}).values(ranks);
  measure::SlotInfo slot;
  slot.plan = {measure::SlotKind::timed, 0, 0, 0, kSteps, false, false};
  const std::int64_t start = now_ns();
  writer.slot_done(slot, reports, values);
  writer.block_done(schedule[0], 0);
  const double wall = static_cast<double>(now_ns() - start) * 1e-9;
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  // Judged by CPU time: a test must not fail since its machine is busy.
  const auto cpu = [](const rusage& usage) {
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  };
  const double seconds = cpu(after) - cpu(before);
  const double grown_mb = static_cast<double>(after.ru_maxrss - before.ru_maxrss) / 1024;
  RecordProperty("seconds", std::to_string(seconds));
  RecordProperty("grown_mb", std::to_string(grown_mb));
  std::printf("1,000,000 events: %.3f s (%.3f s of CPU with making them), %.0f MB\n", wall, seconds, grown_mb);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // a sanitizer's time and memory are its own
  EXPECT_LT(seconds, 2.0);
  EXPECT_LT(grown_mb, 500.0);
#endif
  std::uint64_t events = 0;
  for (int rank = 0; rank < 4; ++rank) events += read_events(base / fmt::format("run/events/rank-{}.npy", rank)).size();
  EXPECT_GE(events, 1'000'000U);
}

}  // namespace
}  // namespace eb::result
