// Every variant of the lookup that this machine supports against a reference written here in exact double arithmetic.
#include "kernels/lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "harness/engram/content.h"
#include "kernels/cpu_variant.h"

namespace eb::kernels {
namespace {

// E4M3: sign, 4 exponent bits with bias 7, 3 mantissa bits, no infinities, S.1111.111 is NaN.
double e4m3(unsigned code) {
  const int exponent = static_cast<int>((code >> 3) & 15U);
  const int mantissa = static_cast<int>(code & 7U);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

double ue8m0(unsigned byte) {
  if (byte == 0) return 0;
  if (byte == 255) return std::numeric_limits<double>::infinity();
  return std::ldexp(1.0, static_cast<int>(byte) - 127);
}

// Round half to even, denormals kept; every NaN is 0x7FC0.
std::uint16_t bf16_bits(double value) {
  if (std::isnan(value)) return 0x7FC0;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000U : 0U);
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | 0x7F80U);
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -126);
  // Units of the last place; 128..256 for normal numbers, and a carry to 256 runs into the exponent by itself.
  const double units = std::nearbyint(std::ldexp(magnitude, 7 - exponent));
  const auto bits = static_cast<unsigned>(units) + (static_cast<unsigned>(exponent + 126) << 7);
  return static_cast<std::uint16_t>(sign | std::min(bits, 0x7F80U));
}

TEST(LookupReference, KnowsLandmarks) {
  EXPECT_EQ(bf16_bits(1.0), 0x3F80);
  EXPECT_EQ(bf16_bits(-448.0), 0xC3E0);
  EXPECT_EQ(bf16_bits(std::ldexp(1.0, -133)), 0x0001);
  EXPECT_EQ(bf16_bits(std::ldexp(1.0, -134)), 0x0000);  // half a unit: to even
  EXPECT_EQ(bf16_bits(std::ldexp(3.0, -134)), 0x0002);  // one and a half: to even
  EXPECT_EQ(bf16_bits(std::ldexp(1.0, -126)), 0x0080);
  EXPECT_EQ(bf16_bits(std::ldexp(1.75, 128)), 0x7F80);
  EXPECT_EQ(e4m3(0x7E), 448.0);
  EXPECT_EQ(e4m3(0x01), std::ldexp(1.0, -9));
}

// A table in memory, in either layout, with slack before and behind that no kernel may need.
struct Table {
  TableView view;
  std::vector<std::byte> memory;

  Table(RowFormat format, int dim, int block, std::int64_t first_row, std::int64_t rows, bool interleaved) {
    const std::int64_t weight_bytes = format == RowFormat::bf16 ? dim * 2 : dim;
    const std::int64_t scale_bytes = format == RowFormat::bf16 ? 0 : (dim + block - 1) / block;
    const std::int64_t stride = (weight_bytes + scale_bytes + 15) / 16 * 16;
    memory.resize(static_cast<std::size_t>(interleaved ? rows * stride : rows * (weight_bytes + scale_bytes)));
    view.weights = memory.data();
    view.weight_stride = interleaved ? stride : weight_bytes;
    if (format == RowFormat::e4m3_ue8m0) {
      view.scales = memory.data() + (interleaved ? weight_bytes : rows * weight_bytes);
      view.scale_stride = interleaved ? stride : scale_bytes;
    }
    view.first_row = first_row;
    view.rows = rows;
    view.dim = dim;
    view.block = format == RowFormat::bf16 ? 0 : block;
    view.format = format;
  }
  [[nodiscard]] std::uint8_t* weights(std::int64_t local) {
    return reinterpret_cast<std::uint8_t*>(memory.data()) + local * view.weight_stride;
  }
  [[nodiscard]] std::uint8_t* scales(std::int64_t local) {
    return reinterpret_cast<std::uint8_t*>(memory.data()) + (view.scales - view.weights) + local * view.scale_stride;
  }
  template <typename Random>
  void fill(Random& random, unsigned scale_first, unsigned scale_count) {
    const std::int64_t weight_bytes = view.format == RowFormat::bf16 ? view.dim * 2 : view.dim;
    for (std::int64_t row = 0; row < view.rows; ++row) {
      for (std::int64_t i = 0; i < weight_bytes; ++i) weights(row)[i] = static_cast<std::uint8_t>(random());
      if (view.scales == nullptr) continue;
      for (std::int64_t i = 0; i < (view.dim + view.block - 1) / view.block; ++i) {
        scales(row)[i] = static_cast<std::uint8_t>(scale_first + random() % scale_count);
      }
    }
  }
  [[nodiscard]] std::uint16_t element(std::int64_t local, int i) {
    if (view.format == RowFormat::bf16) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, weights(local) + 2 * i, 2);
      return bits;
    }
    return bf16_bits(e4m3(weights(local)[i]) * ue8m0(scales(local)[i / view.block]));
  }
};

// Runs every program of `grid` with `variant` and compares all of staging, with guards around it.
void check_all(Table& table, LookupArgs args, std::int64_t grid, CpuVariant variant) {
  SCOPED_TRACE(testing::Message() << name(variant) << " dim " << args.table.dim << " block " << args.table.block
                                  << " tokens " << args.tokens << " heads " << args.heads << " columns " << args.columns
                                  << " grid " << grid << (args.order != nullptr ? " ordered" : ""));
  constexpr std::size_t kGuard = 64;
  const auto dim = static_cast<std::size_t>(args.table.dim);
  const auto elements = static_cast<std::size_t>(args.rows()) * dim;
  std::vector<Bf16> staging(elements + 2 * kGuard, Bf16{0xDEAD});
  args.staging = staging.data() + kGuard;
  for (std::int64_t program = 0; program < grid; ++program) lookup_program(args, program, grid, variant);
  for (std::size_t i = 0; i < kGuard; ++i) {
    ASSERT_EQ(staging[i].bits, 0xDEAD);
    ASSERT_EQ(staging[kGuard + elements + i].bits, 0xDEAD);
  }
  for (std::int64_t row = 0; row < args.rows(); ++row) {
    const std::int64_t token = row / args.heads;
    const std::int64_t head = row % args.heads;
    std::int64_t local = -1;
    if (head < args.columns) {
      const std::int64_t id = args.ids[token * args.id_token_stride + args.id_offset + head];
      if (id >= table.view.first_row && id < table.view.first_row + table.view.rows) local = id - table.view.first_row;
    }
    for (std::size_t i = 0; i < dim; ++i) {
      const std::uint16_t expected = local < 0 ? std::uint16_t{0} : table.element(local, static_cast<int>(i));
      ASSERT_EQ(args.staging[static_cast<std::size_t>(row) * dim + i].bits, expected)
          << "row " << row << " id row " << local << " element " << i;
    }
  }
}

// All 256 codes times all 256 scale bytes: row s holds every code in each block, each block with scale byte s, or with
// another scale beside it so that plain and other blocks meet in one row. Once more without NaN codes: a NaN sends the
// row down another path.
TEST(Lookup, EveryCodeTimesEveryScale) {
  for (const int block : {16, 32, 64, 128}) {
    for (const int kind : {0, 1, 2, 3}) {
      const bool mixed = kind % 2 == 1;
      const bool with_nan = kind < 2;
      Table table(RowFormat::e4m3_ue8m0, 256, block, 0, 256, false);
      std::vector<std::int32_t> ids(256);
      std::iota(ids.begin(), ids.end(), 0);
      for (int row = 0; row < 256; ++row) {
        for (int i = 0; i < 256; ++i) table.weights(row)[i] = static_cast<std::uint8_t>(mixed ? i * 7 + row : i);
        for (int i = 0; i < 256; ++i) {
          if (!with_nan && (table.weights(row)[i] & 0x7FU) == 0x7FU) table.weights(row)[i] ^= 1U;
        }
        for (int b = 0; b < 256 / block; ++b) {
          table.scales(row)[b] = static_cast<std::uint8_t>(mixed && (b + row) % 2 == 1 ? 127 - b : row);
        }
      }
      LookupArgs args{
          .table = table.view, .ids = ids.data(), .id_token_stride = 1, .tokens = 256, .columns = 1, .heads = 1};
      for (const CpuVariant variant : supported_variants()) check_all(table, args, 3, variant);
    }
  }
}

TEST(Lookup, RandomShapesMatchTheReference) {
  std::mt19937_64 random(1);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 120; ++round) {
    const bool bf16 = round % 4 == 3;
    const int dim = static_cast<int>(16 * (1 + below(18)));
    const int block = static_cast<int>(16 << below(4));
    const std::int64_t first_row = below(2) * below(1'000'000);
    Table table(bf16 ? RowFormat::bf16 : RowFormat::e4m3_ue8m0, dim, block, first_row, 1 + below(200), below(2) == 0);
    // All scale bytes, or those of synthetic content, where the fast path must hold for whole rows.
    if (below(2) == 0) {
      table.fill(random, 0, 256);
    } else {
      table.fill(random, 120, 14);
    }
    LookupArgs args;
    args.table = table.view;
    args.heads = static_cast<std::int32_t>(1 + below(24));
    args.columns = static_cast<std::int32_t>(1 + below(args.heads));
    args.tokens = below(40);
    args.id_offset = below(5);
    args.id_token_stride = args.id_offset + args.columns + below(30);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(args.tokens * args.id_token_stride + 64));
    for (std::int32_t& id : ids) {
      const std::int64_t kind = below(10);
      id = static_cast<std::int32_t>(kind == 0   ? -1
                                     : kind == 1 ? first_row + table.view.rows + below(3)
                                     : kind == 2 ? first_row - 1 - below(3)
                                                 : first_row + below(table.view.rows));
    }
    ids[0] = std::numeric_limits<std::int32_t>::max();
    ids[1] = std::numeric_limits<std::int32_t>::min();
    args.ids = ids.data();

    std::vector<std::int32_t> order(static_cast<std::size_t>(args.rows()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const std::int64_t grids[] = {1, 2, std::max<std::int64_t>(1, args.tiles()), args.tiles() + 3};
    for (const CpuVariant variant : supported_variants()) {
      for (const std::int64_t grid : grids) {
        args.order = nullptr;
        check_all(table, args, grid, variant);
        args.order = order.data();
        check_all(table, args, grid, variant);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A program of the grid touches its own tiles only: that is what makes programs independent.
TEST(Lookup, ProgramOwnsItsTiles) {
  Table table(RowFormat::e4m3_ue8m0, 64, 32, 0, 10, false);
  std::mt19937_64 random(2);
  table.fill(random, 120, 14);
  std::vector<std::int32_t> ids(100, 3);
  std::vector<Bf16> staging(100 * 64, Bf16{0xFFFF});
  LookupArgs args{.table = table.view,
                  .ids = ids.data(),
                  .id_token_stride = 1,
                  .tokens = 100,
                  .columns = 1,
                  .heads = 1,
                  .staging = staging.data()};
  lookup_program(args, 1, 3);
  for (std::int64_t row = 0; row < 100; ++row) {
    const bool mine = row / kTileRows % 3 == 1;
    EXPECT_EQ(staging[static_cast<std::size_t>(row) * 64].bits != 0xFFFF, mine) << row;
  }
}

TEST(Lookup, SortIsStableByRowWithMissingIdsLast) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    LookupArgs args;
    args.table.first_row = round % 3 == 0 ? 0 : 1'000'000;
    args.table.rows = round % 2 == 0 ? 7 : (round % 5 == 0 ? 384'006'168 : 5'000);
    args.heads = 1 + static_cast<std::int32_t>(random() % 12);
    args.columns = 1 + static_cast<std::int32_t>(random() % static_cast<unsigned>(args.heads));
    args.tokens = static_cast<std::int64_t>(random() % 300);
    args.id_offset = 2;
    args.id_token_stride = args.columns + 5;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(args.tokens * args.id_token_stride));
    for (std::int32_t& id : ids) {
      id = random() % 6 == 0
               ? -1
               : static_cast<std::int32_t>(
                     args.table.first_row - 2 +
                     static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(args.table.rows + 4)));
    }
    args.ids = ids.data();
    const auto key = [&](std::int32_t row) {
      const std::int64_t head = row % args.heads;
      if (head >= args.columns) return std::numeric_limits<std::int64_t>::max();
      const std::int64_t id = ids[static_cast<std::size_t>(row / args.heads * args.id_token_stride + 2 + head)];
      const bool inside = id >= args.table.first_row && id < args.table.first_row + args.table.rows;
      return inside ? id : std::numeric_limits<std::int64_t>::max();
    };
    std::vector<std::int32_t> expected(static_cast<std::size_t>(args.rows()));
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](std::int32_t a, std::int32_t b) { return key(a) < key(b); });
    std::vector<std::int32_t> order(expected.size(), -7);
    sort_rows(args, order.data());
    ASSERT_EQ(order, expected) << "round " << round;
  }
}

// The domain's reference says the same as the one above, and synthetic rows take the kernels' fast path.
TEST(Lookup, AgreesWithTheDomainOnSyntheticAndOnArbitraryRows) {
  const engram::Geometry geometry = engram::make_geometry(engram::preset("deepseek-v4.1-flash"), 0.001);
  Table table(RowFormat::e4m3_ue8m0, 256, 32, 0, 64, true);
  std::mt19937_64 random(4);
  table.fill(random, 0, 256);
  for (std::int64_t row = 0; row < 32; ++row) {
    engram::synthetic_row(geometry, 7, 14, row, {table.weights(row), 256}, {table.scales(row), 8});
  }
  std::vector<std::int32_t> ids(64);
  std::iota(ids.begin(), ids.end(), 0);
  for (const CpuVariant variant : supported_variants()) {
    std::vector<Bf16> staging(64 * 256);
    LookupArgs args{.table = table.view,
                    .ids = ids.data(),
                    .id_token_stride = 8,
                    .tokens = 8,
                    .columns = 8,
                    .heads = 8,
                    .staging = staging.data()};
    lookup_program(args, 0, 1, variant);
    std::vector<Bf16> expected(256);
    for (std::int64_t row = 0; row < 64; ++row) {
      engram::row_value(geometry, {table.weights(row), 256}, {table.scales(row), 8}, expected);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), staging.begin() + row * 256))
          << name(variant) << " row " << row;
    }
  }
}

TEST(CpuVariant, BaselineIsAlwaysThereAndTheBestIsSupported) {
  const std::vector<CpuVariant> variants = supported_variants();
  ASSERT_FALSE(variants.empty());
  EXPECT_EQ(variants.front(), CpuVariant::baseline);
  EXPECT_EQ(variants.back(), best_variant());
  EXPECT_TRUE(supported(best_variant()));
}

}  // namespace
}  // namespace eb::kernels
