// Two sources say where pages lie; where they differ, the result says so.
#include "harness/result/kept_placement.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/result/support.h"

namespace eb::result {
namespace {

class KeptPlacement : public ::testing::Test {
 protected:
  KeptPlacement() {
    record_.plan = &plan_;
    record_.layouts = input_.layouts;
    record_.topology = input_.topology;
    reroll_.storage = tiny_storage(record_.layouts.front(), {"steady"});
  }
  // Changes what move_pages said of the table, in every rank's snapshot.
  std::vector<BrokenPromise> disputed(const std::function<void(Json& pages)>& change) {
    RerollRecord reroll = reroll_;
    for (supervise::SnapshotReport& one : reroll.storage.snapshots) {
      Json snapshot = Json::parse(one.json);
      change(snapshot["tables"][0]["move_pages"]);
      one.json = snapshot.dump();
    }
    return disputed_pages(record_, reroll, "steady");
  }

  plan::Plan plan_ = tiny_plan();
  RunInput input_ = run_input(plan_);
  Record record_;
  RerollRecord reroll_;
};

TEST_F(KeptPlacement, SourcesThatAgreeAreNoDispute) {
  EXPECT_TRUE(disputed([](Json&) {}).empty());
}

TEST_F(KeptPlacement, PagesOnAnotherNodeAreADisputeOfEachBacking) {
  const auto found = disputed([](Json& pages) {
    const auto count = pages["node_pages"]["0"].get<std::int64_t>();
    pages["node_pages"] = {{"0", count - 2}, {"1", 2}};
  });
  ASSERT_EQ(found.size(), record_.layouts.front().backings.size());
  EXPECT_NE(found[0].text.find("numa_maps and move_pages differ by 8192 bytes"), std::string::npos) << found[0].text;
}

TEST_F(KeptPlacement, OnePageATableMayBeCutByItsEnds) {
  EXPECT_TRUE(disputed([](Json& pages) {
                const auto count = pages["node_pages"]["0"].get<std::int64_t>();
                pages["node_pages"] = {{"0", count - 1}, {"1", 1}};
              }).empty());
}

TEST_F(KeptPlacement, ADrawOfPagesMayBeOffByItsError) {
  const auto draw = [&](double share) {
    return disputed([share](Json& pages) {
      pages["node_pages"] = {{"0", 10000 - static_cast<int>(share * 10000)}, {"1", static_cast<int>(share * 10000)}};
      pages["sampled"] = true;
      pages["share_error"] = 0.1;
    });
  };
  EXPECT_TRUE(draw(0.3).empty());
  EXPECT_FALSE(draw(0.9).empty());
}

TEST_F(KeptPlacement, OneSourceAloneIsNoDispute) {
  EXPECT_TRUE(disputed([](Json& pages) { pages = missing("move_pages: Operation not permitted"); }).empty());
  EXPECT_TRUE(disputed([](Json& pages) { pages["not_mapped_pages"] = 1; }).empty());
}

}  // namespace
}  // namespace eb::result
