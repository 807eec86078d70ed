#include "harness/engram/ledger.h"

#include <gtest/gtest.h>

#include <numeric>

#include "harness/base/error.h"

namespace eb::engram {
namespace {

constexpr std::int64_t kW = 202'758'032'400;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

Ledger flash(const LedgerInput& input) {
  static const Geometry geometry = make_geometry(preset("deepseek-v4.1-flash"), 1.0);
  const Ledger ledger = make_ledger(geometry, input);
  EXPECT_EQ(std::accumulate(ledger.backing_bytes.begin(), ledger.backing_bytes.end(), std::int64_t{0}),
            ledger.table_bytes);
  return ledger;
}

TEST(Ledger, SharedIsOneCopyForTheGroup) {
  const Ledger ledger = flash({.tp = 2, .dp = 2, .edp_group = 2, .table_mode = TableMode::shared, .max_tokens = 512});
  EXPECT_EQ(ledger.table_bytes_one_copy, kW);
  EXPECT_EQ(ledger.table_bytes, kW);
  EXPECT_EQ(ledger.backing_bytes.size(), 2U);
  EXPECT_EQ(ledger.staging_bytes_per_rank, 2 * 512 * 12 * 256 * 2);
}

TEST(Ledger, PrivateIsOneCopyAReplica) {
  const Ledger ledger = flash({.tp = 2, .dp = 4, .edp_group = 4, .table_mode = TableMode::private_});
  EXPECT_EQ(ledger.table_bytes, 4 * kW);
  EXPECT_EQ(ledger.backing_bytes.size(), 8U);
}

TEST(Ledger, DpShardedStagesTheWholeGroupsTokens) {
  const Ledger ledger =
      flash({.tp = 2, .dp = 2, .edp_group = 2, .table_mode = TableMode::dp_sharded, .max_tokens = 512});
  EXPECT_EQ(ledger.table_bytes, kW);
  EXPECT_EQ(ledger.backing_bytes.size(), 4U);
  EXPECT_EQ(ledger.staging_bytes_per_rank, 2 * (512 * 2) * 6 * 256 * 2);
}

TEST(Ledger, PaddedHeadsAreStaged) {
  // 24 heads over 5 shards: five heads a shard, the last with one of padding.
  const Ledger ledger = flash({.tp = 5, .dp = 1, .edp_group = 1, .table_mode = TableMode::private_, .max_tokens = 10});
  EXPECT_EQ(ledger.staging_bytes_per_rank, 2 * 10 * 5 * 256 * 2);
  EXPECT_EQ(ledger.table_bytes, kW) << "padding has no rows";
}

TEST(Ledger, SeveralGroupsAreSeveralCopies) {
  const Ledger ledger = flash({.tp = 1, .dp = 4, .edp_group = 2, .table_mode = TableMode::shared});
  EXPECT_EQ(ledger.table_bytes, 2 * kW);
}

TEST(Ledger, CopiesForTheNodesThatReadAShard) {
  LedgerInput input{.tp = 2, .dp = 2, .edp_group = 2, .table_mode = TableMode::shared};
  input.copies_per_shard = {2, 2};  // readers of every shard on both nodes
  EXPECT_EQ(flash(input).table_bytes, 2 * kW);
  input.copies_per_shard = {1, 1};  // no shard is read from two nodes
  EXPECT_EQ(flash(input).table_bytes, kW);
  input.copies_per_shard = {2, 1};
  const Ledger one = flash(input);
  EXPECT_EQ(one.backing_bytes.size(), 3U);
  EXPECT_EQ(one.table_bytes, kW + one.backing_bytes[0]);
}

TEST(Ledger, PowersOfTwoOfACachingAllocator) {
  LedgerInput input{.tp = 1, .dp = 1, .edp_group = 1, .table_mode = TableMode::private_};
  input.round_pinned_to_power_of_two = true;
  EXPECT_EQ(flash(input).table_bytes, 264 * kGiB);  // 128 + 4 GiB a layer
  EXPECT_EQ(flash(input).table_bytes_one_copy, kW);
  input.layout = Layout::interleaved;
  EXPECT_EQ(flash(input).table_bytes, 256 * kGiB);
}

TEST(Ledger, InterleavedRowsArePadded) {
  const Ledger ledger = flash({.layout = Layout::interleaved});
  EXPECT_EQ(ledger.table_bytes_one_copy, (384'006'168 + 384'016'682) * std::int64_t{272});
}

TEST(Ledger, TrafficOfALookupIsTwoPaths) {
  const Ledger ledger = flash({});
  EXPECT_EQ(ledger.source_bytes_per_token, 24 * 264);
  EXPECT_EQ(ledger.staging_traffic_per_token, 24 * 2 * 256);
}

TEST(Ledger, RefusesCountsThatDoNotFit) {
  EXPECT_THROW((void)flash({.tp = 2, .dp = 3, .edp_group = 2}), Error);
  EXPECT_THROW((void)flash({.tp = 16}), Error);
  EXPECT_THROW((void)flash({.dp = 0}), Error);
  EXPECT_THROW((void)flash({.max_tokens = -1}), Error);
  LedgerInput copies{.tp = 2, .dp = 2, .edp_group = 2};
  copies.copies_per_shard = {1, 2, 1};
  EXPECT_THROW((void)flash(copies), Error);
  copies.copies_per_shard = {1, 0};
  EXPECT_THROW((void)flash(copies), Error);
  copies.copies_per_shard = {1, 1};
  copies.table_mode = TableMode::private_;
  EXPECT_THROW((void)flash(copies), Error);
}

}  // namespace
}  // namespace eb::engram
