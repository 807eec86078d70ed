#include "harness/result/snapshots.h"

#include <gtest/gtest.h>

#include "harness/base/error.h"

namespace eb::result {
namespace {

supervise::SnapshotReport report(int rank, const Json& mapping) {
  return {rank, "after_load", Json({{"label", "after_load"}, {"mapping", mapping}, {"tables", Json::array()}}).dump()};
}

Json shared_mapping(int inode, std::int64_t pages, std::int64_t pss) {
  return {{"backing", {{"kind", "shm"}, {"device", 1}, {"inode", inode}, {"allocated_bytes", 8192}}},
          {"policy", "bind:0"},
          {"kernel_page_bytes", 4096},
          {"node_pages", {{"0", pages}}},
          {"pss_bytes", pss},
          {"rss_bytes", pages * 4096}};
}

TEST(Snapshots, TheFullestPageTableSpeaksForTheBacking) {
  const auto ranks =
      parse_snapshots({report(2, shared_mapping(7, 2, 6000)), report(0, shared_mapping(7, 1, 2000))}, "after_load");
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[0].rank, 0);
  const Json pages = backing_pages({0, 0, {0, 2}, 8192}, ranks, Json());
  EXPECT_EQ(pages["seen_by_rank"], 2);
  EXPECT_EQ(pages["observed_shares"]["0"], 1.0);
  const BackingTotals totals = backing_totals(ranks);
  EXPECT_EQ(totals.allocated_bytes, 8192);  // one backing, two mappings
  EXPECT_EQ(totals.pss_bytes, 8000);
}

TEST(Snapshots, PrivateMemoryIsEachMappingsOwn) {
  Json mapping = shared_mapping(7, 2, 8192);
  mapping["backing"] = nullptr;
  const BackingTotals totals = backing_totals(parse_snapshots({report(0, mapping), report(1, mapping)}, "after_load"));
  EXPECT_EQ(totals.allocated_bytes, 16384);
  EXPECT_EQ(totals.backings, 2);
}

TEST(Snapshots, WhatWasNotMeasuredKeepsItsReason) {
  Json mapping = shared_mapping(7, 2, 8192);
  mapping["pss_bytes"] = missing("smaps is not readable");
  mapping["node_pages"] = missing("no numa_maps");
  const auto ranks = parse_snapshots({report(0, mapping)}, "after_load");
  EXPECT_EQ(backing_totals(ranks).pss_bytes["reason"], "smaps is not readable");
  EXPECT_EQ(backing_pages({0, 0, {0}, 8192}, ranks, Json())["observed_shares"]["reason"], "no numa_maps");
  EXPECT_TRUE(backing_totals({}).pss_bytes["value"].is_null());
  EXPECT_EQ(node_shares(Json::object())["reason"], "no page is mapped here");
}

TEST(Snapshots, BrokenTextIsAnError) {
  EXPECT_THROW((void)parse_snapshots({{0, "after_load", "{"}}, "after_load"), Error);
}

}  // namespace
}  // namespace eb::result
