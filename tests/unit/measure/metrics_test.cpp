#include "harness/measure/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
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

TEST(Registry, NamesAreUniqueCarryTheirUnitAndADefinition) {
  std::set<std::string> names;
  for (const Metric& one : metrics()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_TRUE(std::string(one.name).ends_with(std::string("_") + one.unit)) << one.name;
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
