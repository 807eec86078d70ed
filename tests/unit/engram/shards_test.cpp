#include "harness/engram/shards.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/base/error.h"

namespace eb::engram {
namespace {

using Groups = std::vector<std::vector<int>>;

Geometry tiny(int heads) {
  Model model = preset("tiny");
  model.heads_per_ngram = heads;
  return make_geometry(model, 1.0);
}

// Hosts written as runs: {{0, 8}, {1, 8}} = ranks 0-7 on host 0, 8-15 on host 1.
std::vector<int> hosts(std::initializer_list<std::pair<int, int>> runs) {
  std::vector<int> result;
  for (const auto& [host, ranks] : runs) result.insert(result.end(), static_cast<std::size_t>(ranks), host);
  return result;
}

TEST(Shards, FlashSplitsInto) {
  const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 1.0);
  const std::vector<int> valid = {1, 2, 3, 4, 5, 6, 8, 12, 24};
  std::vector<int> found;
  for (int shards = 1; shards <= 30; ++shards) {
    try {
      std::int64_t next[2] = {0, 0};
      int columns = 0;
      for (int index = 0; index < shards; ++index) {
        const Shard shard = make_shard(geometry, shards, index);
        EXPECT_EQ(shard.first_column, columns);
        columns += shard.columns;
        for (std::size_t layer = 0; layer < 2; ++layer) {
          EXPECT_EQ(shard.rows[layer].first, next[layer]) << shards << " " << index;
          next[layer] += shard.rows[layer].count;
        }
      }
      EXPECT_EQ(columns, 24);
      EXPECT_EQ(next[0], geometry.layers[0].rows);
      EXPECT_EQ(next[1], geometry.layers[1].rows);
      found.push_back(shards);
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                "Engram sharding leaves ranks without hash heads: 24 heads over " + std::to_string(shards) + " shards");
    }
  }
  EXPECT_EQ(found, valid);
}

TEST(Shards, RowCountsComeFromThePrimes) {
  const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 1.0);
  const Shard second = make_shard(geometry, 2, 1);
  EXPECT_EQ(second.first_column, 12);
  EXPECT_EQ(second.rows[0].first, geometry.layers[0].head_offsets[12]);
  EXPECT_NE(second.rows[0].count, geometry.layers[0].rows / 2);
  EXPECT_EQ(second.table_bytes(geometry, Layout::split), (second.rows[0].count + second.rows[1].count) * 264);
  EXPECT_EQ(second.table_bytes(geometry, Layout::interleaved), (second.rows[0].count + second.rows[1].count) * 272);
}

TEST(Shards, SevenHeadsOverFourArePadded) {
  const Geometry geometry = tiny(7);
  const Shard last = make_shard(geometry, 4, 3);
  EXPECT_EQ(last.part, 2);
  EXPECT_EQ(last.first_column, 6);
  EXPECT_EQ(last.columns, 1);  // and one padded head
  EXPECT_EQ(last.rows[0].first, 97 + 101 + 103 + 107 + 109 + 113);
  EXPECT_EQ(last.rows[0].count, 127);
  EXPECT_EQ(make_shard(tiny(8), 4, 3).columns, 2);
  EXPECT_THROW((void)make_shard(tiny(8), 5, 0), Error) << "four shards of two take all eight";
}

TEST(Shards, RefusesIndicesThatDoNotExist) {
  const Geometry geometry = tiny(8);
  EXPECT_THROW((void)make_shard(geometry, 0, 0), Error);
  EXPECT_THROW((void)make_shard(geometry, 2, 2), Error);
  EXPECT_THROW((void)make_shard(geometry, 2, -1), Error);
  EXPECT_THROW((void)make_shard(geometry, 2'000'000'000, 0), Error);
}

TEST(EdpGroups, Size) {
  EXPECT_EQ(edp_group_size(hosts({{0, 4}}), 1, 4), 1);
  EXPECT_EQ(edp_group_size(hosts({{0, 4}}), 4, 1), 4);
  EXPECT_EQ(edp_group_size(hosts({{0, 4}}), 2, 2), 2);
  EXPECT_EQ(edp_group_size(hosts({{0, 8}, {1, 8}}), 8, 2), 4);
  EXPECT_EQ(edp_group_size(hosts({{0, 6}, {1, 6}}), 4, 3), 2);
  EXPECT_EQ(edp_group_size(hosts({{0, 8}, {1, 8}, {2, 8}}), 8, 3), 1);
  EXPECT_EQ(edp_group_size(std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}, 4, 2), 1);
  EXPECT_EQ(edp_group_size(hosts({{0, 3}, {1, 5}}), 4, 2), 1);
  // Hosts of equal share whose ranges are cut by each other's, in pieces that would divide.
  EXPECT_EQ(edp_group_size(hosts({{0, 4}, {1, 4}, {0, 4}, {1, 4}}), 16, 1), 1);
  EXPECT_EQ(edp_group_size(hosts({{0, 2}, {1, 4}, {0, 2}}), 4, 2), 1);
  // Host numbers are names: any will do, in any order.
  EXPECT_EQ(edp_group_size(hosts({{7, 4}, {3, 4}}), 4, 2), 2);
}

TEST(EdpGroups, RefusesWorldsThatAreNoReplicas) {
  EXPECT_THROW((void)edp_group_size(hosts({{0, 4}}), 3, 1), Error);
  EXPECT_THROW((void)edp_group_size(hosts({{0, 4}}), 0, 1), Error);
  EXPECT_THROW((void)edp_groups(4, 2, 4), Error);
}

TEST(EdpGroups, Members) {
  EXPECT_EQ(edp_groups(4, 2, 2), (Groups{{0, 2}, {1, 3}}));
  EXPECT_EQ(edp_groups(4, 1, 4), (Groups{{0, 1, 2, 3}}));
  EXPECT_EQ(edp_groups(8, 2, 2), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(edp_groups(2, 2, 1), (Groups{{0}, {1}}));
}

}  // namespace
}  // namespace eb::engram
