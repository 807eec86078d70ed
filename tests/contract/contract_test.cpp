// What must hold before any timing of a combination is believed: all readers see the same bytes, the load has
// overwritten every byte that was there before, replicas with different and with no tokens read the right rows, and so
// do steps whose work is recorded and replayed.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/engram/shards.h"
#include "harness/plan/values.h"
#include "harness/rank/tables/table_writer.h"
#include "harness/supervise/binding.h"
#include "harness/supervise/reroll.h"
#include "tests/contract/combinations.h"
#include "tests/contract/content_sum.h"

namespace eb::contract {
namespace {

using Json = nlohmann::json;

// The same for all combinations that cut and place a shard alike: made once.
std::string expected_content(const plan::Scenario& scenario, const engram::Geometry& geometry,
                             const engram::Shard& shard) {
  const plan::BackingLayout places = plan::make_backing_layout(geometry, shard, scenario.storage);
  static std::map<std::tuple<int, int, std::int64_t>, std::string> made;
  std::string& content = made[{shard.shards, shard.index, places.bytes}];
  if (content.empty()) {
    const Mapping memory = Mapping::anonymous(static_cast<std::size_t>(places.bytes), "expected content");
    const auto source = rank::make_synthetic_source(geometry, scenario.seed);
    rank::write_tables(*source, geometry, shard, scenario.storage.layout, places, memory.data(), 1, {});
    content = content_sum(std::span(memory.data(), memory.size()));
  }
  return content;
}

control::RunSlot checked_slot(const plan::Scenario& scenario, std::uint16_t number, std::int64_t first_step,
                              std::int64_t steps) {
  control::RunSlot slot;
  slot.slot = number;
  slot.prefetch_json = plan::to_json(scenario);
  slot.first_step = first_step;
  slot.steps = steps;
  slot.check = true;  // ids and gathered rows of the last step against the reference: a difference ends the slot
  return slot;
}

// Own tokens of the replicas in a slot, by replica; every rank of a replica must say the same.
std::map<int, std::int64_t> tokens_by_replica(const std::vector<supervise::SlotReport>& reports, int tp) {
  std::map<int, std::set<std::int64_t>> seen;
  for (const supervise::SlotReport& report : reports) {
    seen[report.rank / tp].insert(Json::parse(report.facts_json).at("own_tokens").get<std::int64_t>());
  }
  std::map<int, std::int64_t> tokens;
  for (const auto& [replica, values] : seen) {
    EXPECT_EQ(values.size(), 1U) << "ranks of replica " << replica;
    tokens[replica] = *values.begin();
  }
  return tokens;
}

void expect_rows_compared(const std::vector<supervise::SlotReport>& reports, const plan::Scenario& scenario) {
  for (const supervise::SlotReport& report : reports) {
    const Json rows = Json::parse(report.facts_json).at("checks").at("rows");
    const bool idle = scenario.workload.step_tokens(report.rank / scenario.parallel.tp, 2) == 0;
    if (!idle) {
      ASSERT_TRUE(rows.is_object()) << "rank " << report.rank;
      EXPECT_GT(rows.at("compared").get<std::int64_t>(), 0) << "rank " << report.rank;
    }
  }
}

class Contract : public ::testing::TestWithParam<Combination> {
 protected:
  // The plan on this machine, or a skip that says what is missing.
  void prepare(const std::string& backend) {
    // The fake backend has a driver in place of CUDA's (docs/placement.md); the CPU has none.
    if (GetParam().backing == plan::Backing::cuda_host_numa && backend == "cpu") {
      GTEST_SKIP() << GetParam().text() << ": memory of the CUDA driver, which the CPU backend does not have";
    }
    plan_ = plan::parse_plan(scenario_text(GetParam(), backend), ".", {});
    for (const supervise::Obstacle& one : supervise::preflight(plan_)) {
      if (one.exit == Exit::skipped) GTEST_SKIP() << GetParam().text() << ": " << one.text;
      FAIL() << one.text;
    }
    geometry_ = engram::make_geometry(plan_.base.model.base, plan_.base.model.table_scale);
    layout_ = supervise::layout_here(plan_.base, geometry_, placement::read_topology(placement::Devices::skip));
  }

  void expect_same_bytes(const std::vector<supervise::SlotReport>& reports) const {
    ASSERT_EQ(reports.size(), layout_.ranks.size());
    for (const supervise::SlotReport& report : reports) {
      const plan::RankPlace& place = layout_.ranks[static_cast<std::size_t>(report.rank)];
      EXPECT_EQ(Json::parse(report.facts_json).at("mapping_content").get<std::string>(),
                expected_content(plan_.base, geometry_, place.shard))
          << "rank " << report.rank << ", backing " << place.backing;
    }
  }

  plan::Plan plan_;
  engram::Geometry geometry_;
  plan::RunLayout layout_;
};

TEST_P(Contract, ReadersSeeTheLoadedBytesAndUnevenReplicasTheirRows) {
  ASSERT_NO_FATAL_FAILURE(prepare("cpu"));
  if (IsSkipped()) return;
  supervise::Reroll reroll(plan_.base, layout_, {});
  // Steps 0 and 1: replica 1 has two tokens, then none; step 2: two again.
  const auto first = reroll.run_slot(checked_slot(plan_.base, 0, 0, 2));
  expect_same_bytes(first);
  EXPECT_EQ(tokens_by_replica(first, plan_.base.parallel.tp), (std::map<int, std::int64_t>{{0, 12}, {1, 2}}));
  const auto second = reroll.run_slot(checked_slot(plan_.base, 1, 2, 1));
  expect_same_bytes(second);  // reading has changed nothing
  EXPECT_EQ(tokens_by_replica(second, plan_.base.parallel.tp), (std::map<int, std::int64_t>{{0, 6}, {1, 2}}));
  expect_rows_compared(second, plan_.base);
  reroll.tear_down();
}

// On the fake backend, which holds a step's recorded pieces to the rules of a device graph.
TEST_P(Contract, ReplayedStepsReadTheSameRows) {
  ASSERT_NO_FATAL_FAILURE(prepare("fake"));
  if (IsSkipped()) return;
  supervise::Reroll reroll(plan_.base, layout_, {});
  std::set<std::string> digests;
  for (std::uint16_t n = 0; n < 3; ++n) {  // plainly, recorded, replayed
    const auto reports = reroll.run_slot(checked_slot(plan_.base, n, 2, 1));
    expect_rows_compared(reports, plan_.base);
    expect_same_bytes(reports);
    digests.insert(Json::parse(reports[0].facts_json).at("digests").at("rows").get<std::string>());
  }
  EXPECT_EQ(digests.size(), 1U);
  reroll.tear_down();
}

INSTANTIATE_TEST_SUITE_P(All, Contract, ::testing::ValuesIn(valid_combinations()),
                         [](const auto& info) { return info.param.text(); });

// What the table says is valid, `plan` takes, and what it says is not, `plan` refuses: no combination is lost between
// them.
TEST(Combinations, AreThoseThatPlanTakes) {
  std::set<std::string> listed;
  for (const Combination& one : valid_combinations()) {
    if (one.backing != plan::Backing::cuda_host_numa) listed.insert(one.text());  // refused on the CPU backend
  }
  std::set<std::string> taken;
  for (const auto& [mode_name, mode] : plan::table_modes()) {
    for (const auto& [backing_name, backing] : plan::backings()) {
      for (const auto& [policy_name, policy] : plan::policy_kinds()) {
        for (const auto& [copies_name, copies] : plan::copies_kinds()) {
          const Combination one{mode, backing, policy, copies};
          try {
            static_cast<void>(plan::parse_plan(scenario_text(one, "cpu"), ".", {}));
            taken.insert(one.text());
          } catch (const Error&) {
            continue;  // refused
          }
        }
      }
    }
  }
  EXPECT_EQ(taken, listed);
  EXPECT_GT(taken.size(), 100U);
}

// Tables are never shared over the border of a host, in any table mode that has groups.
TEST(HostBorder, NoGroupCrossesIt) {
  for (const int tp : {1, 2, 4}) {
    for (const int hosts : {1, 2, 4}) {
      const int dp = 8;
      const int ranks = tp * dp;
      std::vector<int> host_of(static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) host_of[static_cast<std::size_t>(rank)] = rank / (ranks / hosts);
      const int size = engram::edp_group_size(host_of, dp, tp);
      EXPECT_EQ(size, dp / hosts);
      for (const std::vector<int>& group : engram::edp_groups(ranks, tp, size)) {
        std::set<int> found;
        for (const int rank : group) found.insert(host_of[static_cast<std::size_t>(rank)]);
        EXPECT_EQ(found.size(), 1U) << "tp " << tp << ", hosts " << hosts;
      }
    }
  }
  EXPECT_EQ(engram::edp_group_size(std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}, 4, 2), 1);  // replicas over two hosts
}

}  // namespace
}  // namespace eb::contract
