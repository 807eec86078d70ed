#include "harness/measure/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/measure/cells.h"
#include "tests/unit/measure/synthetic.h"

namespace eb::measure {
namespace {

// TP2 x DP2: replicas {0,1} and {2,3}.
plan::RunLayout layout(bool sharded = false) {
  plan::RunLayout layout;
  for (int r = 0; r < 4; ++r) {
    plan::RankPlace place;
    place.rank = r;
    place.replica = r / 2;
    place.tp_rank = r % 2;
    layout.ranks.push_back(place);
  }
  layout.tp_groups = {{0, 1}, {2, 3}};
  layout.edp_groups = {{0, 2}, {1, 3}};
  layout.edp_group_size = sharded ? 2 : 1;
  return layout;
}

class FourRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int r = 0; r < 4; ++r) {
      Script script;
      scripted_step(script, 0, 10000, r * 7);
      ranks.push_back(build_timeline(script.events, true, r));
    }
  }
  [[nodiscard]] std::size_t column(const StepMetrics& metrics, const std::string& name) const {
    for (std::size_t i = 0; i < metrics.columns().size(); ++i) {
      if (metrics.columns()[i].name == name) return i;
    }
    ADD_FAILURE() << name;
    return 0;
  }
  std::vector<std::vector<RankStep>> ranks;
};

TEST_F(FourRanks, ValuesOfAStep) {
  const StepMetrics metrics(layout(), {1, 14});
  const auto values = metrics.values(ranks);
  ASSERT_EQ(values.size(), 1U);
  const auto of = [&](int rank, const char* name) {
    return values[0].per_rank[static_cast<std::size_t>(rank)][column(metrics, name)];
  };
  EXPECT_DOUBLE_EQ(of(0, "lookup_us.l1"), 0.3);
  EXPECT_DOUBLE_EQ(of(0, "lookup_us"), 0.3 + 0.19);  // the sum over layers
  EXPECT_DOUBLE_EQ(of(0, "front_us.l1"), 0.145);     // layer 0
  EXPECT_DOUBLE_EQ(of(0, "front_us.l14"), 0.09);     // layer 1
  EXPECT_DOUBLE_EQ(of(0, "backbone_us"), 0.145 + 0.09 + 0.1);
  EXPECT_DOUBLE_EQ(of(0, "exposed_us.l1"), 0.15);
  // Rank 1 reaches the gather 7 ns after rank 0: rank 0's gather counts from there, its skew is the 7 ns.
  EXPECT_DOUBLE_EQ(of(0, "gather_us.l1"), 0.073);
  EXPECT_DOUBLE_EQ(of(0, "skew_us.l1"), 0.007);
  EXPECT_DOUBLE_EQ(of(1, "skew_us.l1"), 0);
  EXPECT_DOUBLE_EQ(of(1, "gather_us.l1"), 0.08);
  // ... and 7 ns of rank 0's wait would only have been a wait for rank 1.
  EXPECT_DOUBLE_EQ(of(0, "peer_late_us.l1"), 0.007);
  EXPECT_DOUBLE_EQ(of(0, "recoverable_us.l1"), 0.143);
  EXPECT_DOUBLE_EQ(of(0, "wkv_gate_us.l1"), 0.05 + 0.029);
  EXPECT_DOUBLE_EQ(of(0, "wkv_gate_us.l14"), 0.02 + 0.02);
  EXPECT_TRUE(std::isnan(of(0, "ids_us")));  // shared: nothing to exchange, not a zero
  EXPECT_TRUE(std::isnan(of(0, "control_us")));
}

TEST_F(FourRanks, AStepIsItsSlowestRank) {
  const StepMetrics metrics(layout(), {1, 14});
  const auto values = metrics.values(ranks);
  ASSERT_EQ(values[0].per_replica.size(), 2U);
  EXPECT_DOUBLE_EQ(values[0].per_replica[0][column(metrics, "step_us")], 0.907);  // rank 0's start to rank 1's end
  EXPECT_DOUBLE_EQ(values[0].per_replica[1][column(metrics, "step_us")], 0.921);
  EXPECT_DOUBLE_EQ(values[0].per_replica[0][column(metrics, "exposed_us.l1")], 0.15);
}

TEST_F(FourRanks, RanksMustAgreeOnTheirSteps) {
  ranks[2].clear();
  EXPECT_THROW((void)StepMetrics(layout(), {1, 14}).values(ranks), Error);
}

TEST_F(FourRanks, CellsKeepBlocksReplicasAndRanks) {
  const StepMetrics metrics(layout(), {1, 14});
  const auto values = metrics.values(ranks);
  Cells cells(2);
  cells.add(0, 0, 0, values[0]);
  cells.add(0, 0, 1, values[0]);
  const std::size_t step = column(metrics, "step_us");
  EXPECT_EQ(cells.pooled(0, step).size(), 4U);
  EXPECT_EQ(cells.of_replica(0, step, 1), (std::vector<double>{0.921, 0.921}));
  EXPECT_EQ(cells.of_rank(0, step, 3).size(), 2U);
  ASSERT_EQ(cells.blocks(0, step).size(), 2U);
  EXPECT_DOUBLE_EQ(cells.blocks(0, step)[1].summary.median, 0.914);
  EXPECT_FALSE(cells.summary(1, step));
  EXPECT_FALSE(cells.summary(0, column(metrics, "ids_us")));
}

// Windows of the lookup alone: `spans` of layers 1 and 14, 4 launches of 100 rows each.
RankStep window(std::uint32_t step, std::int64_t start, std::int64_t length_1, std::int64_t length_14) {
  RankStep out;
  out.step = step;
  out.start_ns = start;
  out.done_ns = start + length_1 + length_14;
  for (const int layer : {1, 14}) {
    LookupTimes one;
    one.layer = layer;
    one.start_ns = layer == 1 ? start : start + length_1;
    one.done_ns = layer == 1 ? start + length_1 : out.done_ns;
    one.launches = 4;
    one.rows = 100;
    out.lookups.push_back(one);
  }
  out.singles = {{1, start - 500, start - 490}, {14, start - 480, start - 460}};
  return out;
}

RankStep idle(std::uint32_t step) {
  RankStep out;
  out.step = step;
  return out;
}

TEST(Windows, TimesAreOfOneLaunchAndRatesOfRowsOverTime) {
  const StepMetrics metrics(layout(), {1, 14});
  const auto column = [&](const std::string& name) {
    return static_cast<std::size_t>(std::ranges::find(metrics.columns(), name, &Column::name) -
                                    metrics.columns().begin());
  };
  // Rank 0 twice as fast as rank 1 of its replica; replica 1 idle.
  const auto values =
      metrics.values({{window(0, 1000, 400, 800)}, {window(0, 1100, 800, 1600)}, {idle(0)}, {idle(0)}}, true);
  ASSERT_EQ(values.size(), 1U);
  const auto& own = values[0].per_rank[0];
  EXPECT_DOUBLE_EQ(own[column("lookup_us.l1")], 0.1);
  EXPECT_DOUBLE_EQ(own[column("lookup_us")], 0.3) << "a launch of each layer";
  EXPECT_DOUBLE_EQ(own[column("launch_latency_us.l14")], 0.02);
  EXPECT_DOUBLE_EQ(own[column("rows_per_s.l1")], 400 / 400e-9);
  EXPECT_DOUBLE_EQ(own[column("rows_per_s")], 800 / 1200e-9) << "rates do not add up";
  const auto& replica = values[0].per_replica[0];
  EXPECT_DOUBLE_EQ(replica[column("lookup_us")], 0.6) << "the slowest rank: the longest time";
  EXPECT_DOUBLE_EQ(replica[column("rows_per_s")], 800 / 2400e-9) << "... and the lowest rate";
  EXPECT_DOUBLE_EQ(replica[column("step_us")], 2.4) << "windows of different ranks do not begin together";
  for (const double value : values[0].per_replica[1]) EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(std::isnan(own[column("bare_gather_us")]));
}

TEST(Windows, TheAggregateCountsWhatAllReadersReadInAWindow) {
  const StepMetrics metrics(layout(), {1, 14});
  const auto column = static_cast<std::size_t>(
      std::ranges::find(metrics.columns(), "aggregate_rows_per_s", &Column::name) - metrics.columns().begin());
  // Rank 1 reads first; rank 2 begins 1000 ns earlier, at half the rate, and ends in the middle of the third window.
  const std::vector<RankStep> first = {window(0, 2000, 400, 400), window(1, 2800, 400, 400), window(2, 3600, 400, 400)};
  const std::vector<RankStep> second = {window(0, 1000, 500, 500), window(1, 2000, 1000, 1000)};
  std::vector<RankStep> padded = second;
  padded.push_back(idle(2));
  const auto values = metrics.values({{idle(0), idle(1), idle(2)}, first, padded, {idle(0), idle(1), idle(2)}}, true);
  ASSERT_EQ(values.size(), 3U);
  // Window 0 of rank 1: its own 800 rows and 800 of 1000 ns of rank 2's layer 1, 400 rows.
  EXPECT_DOUBLE_EQ(values[0].per_rank[1][column], (800 + 320) / 800e-9);
  EXPECT_DOUBLE_EQ(values[0].per_replica[0][column], (800 + 320) / 800e-9);
  EXPECT_DOUBLE_EQ(values[1].per_rank[1][column], (800 + 80 + 240) / 800e-9) << "two spans of rank 2, each in part";
  EXPECT_TRUE(std::isnan(values[2].per_rank[1][column])) << "rank 2 was done before the end of this window";
  EXPECT_TRUE(std::isnan(values[0].per_rank[2][column])) << "it stands once, with the first reader";
  EXPECT_TRUE(std::isnan(values[0].per_replica[1][column]));
  // Steps of a model: no aggregate, their lookups wait for the model.
  EXPECT_TRUE(std::isnan(metrics.values({first, first, first, first})[0].per_rank[0][column]));
}

TEST(Windows, TheBareGatherGivesNoStep) {
  Script script(3);
  script.step(0).at(rank::EventKind::bare_start, 1, 1000).at(rank::EventKind::bare_done, 1, 1500);
  auto steps = build_timeline(script.events, true, 0);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].start_ns, kNoTime);
  ASSERT_EQ(steps[0].bare.size(), 1U);
  steps[0].bare[0].launches = 5;
  steps[0].bare[0].rows = 10;
  const StepMetrics metrics(layout(), {1});
  const auto values = metrics.values({steps, steps, steps, {idle(0)}});
  std::map<std::string, double> own;
  for (std::size_t c = 0; c < metrics.columns().size(); ++c) own[metrics.columns()[c].name] = values[0].per_rank[0][c];
  EXPECT_TRUE(std::isnan(own["step_us"]));
  EXPECT_TRUE(std::isnan(own["rows_per_s"]));
  EXPECT_DOUBLE_EQ(own["bare_gather_us.l1"], 0.1);
  EXPECT_DOUBLE_EQ(own["bare_rows_per_s"], 50 / 500e-9);
  EXPECT_DOUBLE_EQ(own["bare_aggregate_rows_per_s"], 3 * 50 / 500e-9);
}

TEST(Registry, AMetricMustBeOneOfTheWorkload) {
  plan::Scenario scenario;
  const auto error = [&](auto check, const char* name) {
    try {
      check(name, scenario);
    } catch (const Error& found) {
      EXPECT_EQ(found.exit(), Exit::usage);
      return std::string(found.what());
    }
    return std::string();
  };
  EXPECT_EQ(error(check_metric_exists, "exposed_us.p50"), "");
  EXPECT_NE(error(check_metric_exists, "launch_latency_us").find("workload.kind lookup"), std::string::npos);
  EXPECT_NE(error(check_guard, "aggregate_rows_per_s").find("workload.kind steps"), std::string::npos);
  scenario.workload.kind = plan::WorkloadKind::lookup;
  for (const char* good : {"lookup_us.p50", "launch_latency_us", "rows_per_s", "aggregate_rows_per_s"}) {
    EXPECT_EQ(error(check_metric_exists, good), "") << good;
  }
  EXPECT_NE(error(check_metric_exists, "exposed_us.p50").find("it is a metric of workload.kind steps"),
            std::string::npos);
  EXPECT_NE(error(check_guard, "front_us.p50").find("front_us.p50 is not a metric of workload.kind lookup"),
            std::string::npos);
  EXPECT_NE(error(check_metric_exists, "bare_rows_per_s").find("is not judged"), std::string::npos);
  EXPECT_TRUE(higher_is_better("rows_per_s.l14.p50"));
  EXPECT_FALSE(higher_is_better("lookup_us.p50"));
}

TEST(Registry, NamesAreUniqueCarryTheirUnitAndADefinition) {
  std::set<std::string> names;
  for (const Metric& one : metrics()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    const std::string suffix = one.rate ? "rows_per_s" : std::string("_") + one.unit;
    EXPECT_TRUE(std::string(one.name).ends_with(suffix)) << one.name;
    EXPECT_EQ(one.rate, std::string(one.unit) == "rows/s") << one.name;
    EXPECT_GT(std::string(one.definition).size(), 20U) << one.name;
    EXPECT_EQ(&metric(one.id), &one);
  }
}

TEST(Registry, MetricNames) {
  for (const char* good : {"lookup_us", "lookup_us.p50", "lookup_us.l1", "lookup_us.l14.p99.9", "step_us.p95"}) {
    EXPECT_NO_THROW(check_metric_name(good)) << good;
  }
  for (const char* bad : {"lookup_us.p33", "step_us.l1", "lookup_us.", "lookup_us.l", "lookup_us.l1x"}) {
    EXPECT_THROW(check_metric_name(bad), Error) << bad;
  }
  try {
    check_metric_name("lokup_us.p50");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("lookup_us"), std::string::npos);
    EXPECT_EQ(error.exit(), Exit::usage);
  }
}

// docs/metrics.md is the registry. ENGRAM_BENCH_UPDATE_DOCS=1 writes it anew.
TEST(Registry, DocumentationIsTheRegistry) {
  const std::string path = std::string(EB_SOURCE_ROOT) + "/docs/metrics.md";
  if (std::getenv("ENGRAM_BENCH_UPDATE_DOCS") != nullptr) write_file_atomic(path, metrics_markdown());
  EXPECT_EQ(read_file(path), metrics_markdown());
}

}  // namespace
}  // namespace eb::measure
