#include "harness/cli/sweep_axes.h"

#include <gtest/gtest.h>

#include "harness/base/error.h"

namespace eb::cli {
namespace {

using Values = std::vector<std::string>;

TEST(SweepAxes, Lists) {
  const Axis axis = parse_axis("prefetch.grid_cap=8,half,0.25");
  EXPECT_EQ(axis.key, "prefetch.grid_cap");
  EXPECT_EQ(axis.values, (Values{"8", "half", "0.25"}));
  EXPECT_EQ(parse_axis("workload.batches=[{\"decode\":1},{\"decode\":2}],[]").values.size(), 2U)
      << "a comma inside brackets belongs to its value";
  EXPECT_EQ(parse_axis("name=\"a,b\",c").values, (Values{"\"a,b\"", "c"}));
}

TEST(SweepAxes, Ranges) {
  EXPECT_EQ(parse_axis("k=2-5").values, (Values{"2", "3", "4", "5"}));
  EXPECT_EQ(parse_axis("k=1-10+4").values, (Values{"1", "5", "9"}));
  EXPECT_EQ(parse_axis("k=1-256*4").values, (Values{"1", "4", "16", "64", "256"}));
}

TEST(SweepAxes, WrongForms) {
  for (const char* text : {"k", "=1", "k=", "k=5-1", "k=0-8*2", "k=1-8*1", "k=1-8+0", "k=1,,2", "k=1,1", "k=0-99999"}) {
    EXPECT_THROW(static_cast<void>(parse_axis(text)), Error) << text;
  }
}

TEST(SweepAxes, ProductAndZip) {
  const std::vector<Axis> axes = {{"a", {"1", "2"}}, {"b", {"x", "y"}}};
  const auto product = combine(axes, false);
  ASSERT_EQ(product.size(), 4U);
  EXPECT_EQ(product[1][0].value, "1");
  EXPECT_EQ(product[1][1].value, "y") << "the last axis runs fastest";
  const auto zipped = combine(axes, true);
  ASSERT_EQ(zipped.size(), 2U);
  EXPECT_EQ(zipped[1][0].value, "2");
  EXPECT_EQ(zipped[1][1].value, "y");
  EXPECT_THROW(static_cast<void>(combine({{"a", {"1"}}, {"b", {"x", "y"}}}, true)), Error);
  EXPECT_THROW(static_cast<void>(combine({{"a", {"1"}}, {"a", {"2"}}}, false)), Error);
  const Axis wide{"w", std::vector<std::string>(200, "v")};
  const Axis other{"o", std::vector<std::string>(200, "v")};
  EXPECT_THROW(static_cast<void>(combine({wide, other}, false)), Error);
}

}  // namespace
}  // namespace eb::cli
