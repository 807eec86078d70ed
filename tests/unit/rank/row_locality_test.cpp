// Rows counted by the node of their page, on tables that are only half there.
#include "harness/rank/tables/row_locality.h"

#include <gtest/gtest.h>

#include "harness/base/os.h"
#include "harness/plan/layout.h"
#include "placement/backing.h"

namespace eb::rank {
namespace {

class RowLocalityTest : public ::testing::TestWithParam<plan::Layout> {
 protected:
  RowLocalityTest() {
    model.prime_start = 512;
    geometry = engram::make_geometry(model, 1.0);
    shard = engram::make_shard(geometry, 1, 0);
    places = plan::make_backing_layout(geometry, shard, GetParam());
    fd = placement::create_backing(plan::Backing::memfd, static_cast<std::size_t>(places.bytes));
    mapping = Mapping::shared(fd.get(), static_cast<std::size_t>(places.bytes), "test");
  }

  // The same row of every column of layer 0: the first row of the column's head.
  std::vector<std::int32_t> ids_of(std::int64_t row) const {
    std::vector<std::int32_t> ids(geometry.layers.size() * static_cast<std::size_t>(geometry.columns), -1);
    ids[0] = static_cast<std::int32_t>(row);
    ids[1] = static_cast<std::int32_t>(row);
    return ids;
  }

  void touch(std::int64_t row) {
    const plan::TablePlace& at = places.layers[0];
    mapping.data()[at.weights_offset + row * at.weight_stride] = std::byte{1};
  }

  RowLocality count(std::int64_t row, int node) const {
    LocalityCounter counter(geometry, shard, places, mapping.data(), node);
    counter.add(ids_of(row));
    return counter.take()[0];
  }

  engram::Model model = engram::preset("deepseek-v4.1-flash");
  engram::Geometry geometry;
  engram::Shard shard;
  plan::BackingLayout places;
  UniqueFd fd;
  Mapping mapping;
};

TEST_P(RowLocalityTest, RowsCountByTheNodeOfTheirPage) {
  const std::int64_t row = shard.rows[0].count - 1;
  touch(row);
  // The node is wherever this thread runs: over all nodes, the two ids are local exactly once.
  std::int64_t local = 0;
  for (int node = 0; node < 64; ++node) local += count(row, node).local_rows;
  EXPECT_EQ(local, 2);
  EXPECT_EQ(count(row, 0).located_rows, 2);
  EXPECT_EQ(count(row, 1000).local_rows, 0);
  EXPECT_EQ(count(row, 0).unlocated_rows, 0);
}

TEST_P(RowLocalityTest, RowsOfUntouchedPagesHaveNoNode) {
  touch(shard.rows[0].count - 1);
  EXPECT_EQ(count(0, 0).unlocated_rows, 2);
  EXPECT_EQ(count(0, 0).located_rows, 0);
}

TEST_P(RowLocalityTest, StepsAddUpUntilTheyAreTaken) {
  const std::int64_t row = shard.rows[0].count - 1;
  touch(row);
  LocalityCounter counter(geometry, shard, places, mapping.data(), 0);
  for (int step = 0; step < 3; ++step) counter.add(ids_of(row));
  counter.add(ids_of(0));  // a page that nobody has touched
  const std::vector<RowLocality> counts = counter.take();
  ASSERT_EQ(counts.size(), geometry.layers.size());
  EXPECT_EQ(counts[0].located_rows, 6);
  EXPECT_EQ(counts[0].unlocated_rows, 2);
  EXPECT_EQ(counts[1].located_rows + counts[1].unlocated_rows, 0);
  EXPECT_EQ(counter.take()[0].located_rows, 0);
  touch(0);  // without an answer before, it is asked again
  counter.add(ids_of(0));
  EXPECT_EQ(counter.take()[0].located_rows, 2);
}

TEST_P(RowLocalityTest, DeadIdsAndOtherShardsRowsAreNotCounted) {
  const RowLocality none = count(-1, 0);
  EXPECT_EQ(none.located_rows + none.unlocated_rows, 0);
  const RowLocality beyond = count(shard.rows[0].first + shard.rows[0].count, 0);
  EXPECT_EQ(beyond.located_rows + beyond.unlocated_rows, 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, RowLocalityTest, ::testing::Values(plan::Layout::split, plan::Layout::interleaved));

}  // namespace
}  // namespace eb::rank
