// The bare row gather against a plain walk over the bytes of each row.
#include "kernels/gather_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace eb::kernels {
namespace {

struct Case {
  RowFormat format;
  int dim;
  int block;
  bool interleaved;
};

class GatherRows : public testing::TestWithParam<Case> {};

TEST_P(GatherRows, EveryByteOfEveryRowCounts) {
  const Case c = GetParam();
  std::mt19937_64 random(7);
  constexpr std::int64_t kFirst = 1000;
  constexpr std::int64_t kRows = 97;
  TableView view;
  view.format = c.format;
  view.dim = c.dim;
  view.block = c.block;
  view.first_row = kFirst;
  view.rows = kRows;
  GatherArgs args;
  args.lookup.table = view;
  const std::int64_t weights = args.weight_bytes();
  const std::int64_t scales = args.scale_bytes();
  EXPECT_EQ(weights, c.format == RowFormat::bf16 ? c.dim * 2 : c.dim);
  EXPECT_EQ(scales, c.format == RowFormat::bf16 ? 0 : (c.dim + c.block - 1) / c.block);
  const std::int64_t stride = (weights + scales + 15) / 16 * 16;
  std::vector<std::byte> table(static_cast<std::size_t>(kRows * stride));
  for (std::byte& byte : table) byte = static_cast<std::byte>(random());
  view.weights = table.data();
  view.weight_stride = c.interleaved ? stride : weights;
  if (scales > 0) {
    view.scales = table.data() + (c.interleaved ? weights : kRows * weights);
    view.scale_stride = c.interleaved ? stride : scales;
  }
  constexpr std::int64_t kTokens = 19;
  constexpr int kColumns = 5;
  constexpr int kHeads = 6;
  std::vector<std::int32_t> ids(kTokens * kColumns);
  // Rows of the shard, of the shards beside it, and DEAD_ID.
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(kFirst - 5 + static_cast<std::int64_t>(random() % 107));
  ids[3] = -1;
  args.lookup.table = view;
  args.lookup.ids = ids.data();
  args.lookup.id_token_stride = kColumns;
  args.lookup.tokens = kTokens;
  args.lookup.columns = kColumns;
  args.lookup.heads = kHeads;
  std::vector<std::int32_t> order(static_cast<std::size_t>(args.lookup.rows()));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const bool ordered : {false, true}) {
    args.lookup.order = ordered ? order.data() : nullptr;
    for (const std::int64_t grid : {1, 3, 8, 40}) {
      std::vector<std::uint32_t> sums(static_cast<std::size_t>(args.lookup.rows()) + 1, 0xDEADBEEF);
      args.sums = sums.data();
      for (std::int64_t program = 0; program < grid; ++program) gather_rows_program(args, program, grid);
      EXPECT_EQ(sums.back(), 0xDEADBEEF);
      for (std::int64_t row = 0; row < args.lookup.rows(); ++row) {
        const std::int64_t head = row % kHeads;
        std::uint32_t wanted = 0;
        const std::int64_t id = head < kColumns ? ids[static_cast<std::size_t>(row / kHeads * kColumns + head)] : -1;
        if (id >= kFirst && id < kFirst + kRows) {
          for (std::int64_t i = 0; i < weights; ++i)
            wanted ^= static_cast<std::uint32_t>(view.weights[(id - kFirst) * view.weight_stride + i]) << (8 * (i % 4));
          for (std::int64_t i = 0; i < scales; ++i)
            wanted ^= static_cast<std::uint32_t>(view.scales[(id - kFirst) * view.scale_stride + i]) << (8 * (i % 4));
        }
        ASSERT_EQ(sums[static_cast<std::size_t>(row)], wanted) << "row " << row << " grid " << grid;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GatherRows,
    testing::Values(Case{RowFormat::e4m3_ue8m0, 256, 32, false}, Case{RowFormat::e4m3_ue8m0, 256, 32, true},
                    Case{RowFormat::e4m3_ue8m0, 64, 32, false}, Case{RowFormat::e4m3_ue8m0, 80, 16, true},
                    Case{RowFormat::e4m3_ue8m0, 512, 32, false}, Case{RowFormat::bf16, 128, 0, false}));

}  // namespace
}  // namespace eb::kernels
