#include "harness/plan/values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/base/error.h"
#include "harness/plan/nearest.h"

namespace eb::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(Nodes, FollowNumactlsSyntax) {
  EXPECT_THAT(parse_nodes("0"), ElementsAre(0));
  EXPECT_THAT(parse_nodes("5,0-2"), ElementsAre(0, 1, 2, 5));
  for (const char* text : {"", ",", "1,", "2-1", "0,0", "0-2,1", "x", "-1", "1024", "0x1", " 1", "1-2-3"}) {
    EXPECT_THROW(static_cast<void>(parse_nodes(text)), Error) << text;
  }
}

TEST(PolicyText, IsKeptAsWritten) {
  const Policy bind = parse_policy("bind:0,2-3");
  EXPECT_EQ(bind.kind, PolicyKind::bind);
  EXPECT_THAT(bind.nodes, ElementsAre(0, 2, 3));
  EXPECT_EQ(bind.text, "bind:0,2-3");
  EXPECT_TRUE(parse_policy("interleave:all").all_nodes);
  EXPECT_THAT(parse_policy("weighted:1=1,0=3").weights, ElementsAre(Pair(0, 3), Pair(1, 1)));
  EXPECT_EQ(parse_policy("stock").kind, PolicyKind::stock);
  for (const char* text : {"", "bind", "bind:", "stock:0", "preferred:0,1", "bind:all", "weighted:0", "weighted:0=0",
                           "weighted:0=1,0=2", "Bind:0"}) {
    EXPECT_THROW(static_cast<void>(parse_policy(text)), Error) << text;
  }
}

TEST(GridCaps, CountPrograms) {
  EXPECT_EQ(parse_grid_cap("half").programs(132), 66);
  EXPECT_EQ(parse_grid_cap("all").programs(132), 132);
  EXPECT_EQ(parse_grid_cap("half").programs(1), 1);  // never none
  EXPECT_EQ(grid_cap_of(0.25).programs(132), 33);
  EXPECT_EQ(grid_cap_of(8).programs(132), 8);
  EXPECT_EQ(grid_cap_of(1).programs(132), 1);  // a number, not the whole
  for (const double value : {0.0, -1.0, 1.5, 1e7}) EXPECT_THROW(static_cast<void>(grid_cap_of(value)), Error) << value;
  EXPECT_THROW(static_cast<void>(parse_grid_cap("0.25")), Error);
}

TEST(Pretouch, TakesThreads) {
  EXPECT_EQ(parse_pretouch("parallel"), std::make_pair(PretouchKind::parallel, 0));
  EXPECT_EQ(parse_pretouch("parallel:8"), std::make_pair(PretouchKind::parallel, 8));
  for (const char* text : {"parallel:", "parallel:0", "leader:2", "both"}) {
    EXPECT_THROW(static_cast<void>(parse_pretouch(text)), Error) << text;
  }
}

TEST(Nearest, IsByEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  const std::vector<std::string> names{"alpha", "beta", "gamma"};
  EXPECT_EQ(nearest("gama", names), "gamma");
}

}  // namespace
}  // namespace eb::plan
