// The checks themselves: what they accept, and that each wrong bit is named.
#include "harness/rank/step/step_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/base/error.h"
#include "harness/engram/content.h"
#include "harness/engram/hashing.h"
#include "kernels/gate.h"
#include "tests/unit/error_of.h"
#include "tests/unit/rank/step_fixture.h"

namespace eb::rank::test {
namespace {

using eb::test::error_of;
using testing::HasSubstr;

class Reference final : public RowReference {
 public:
  explicit Reference(const engram::Geometry& geometry) : geometry_(geometry) {}
  void row(std::size_t layer_index, std::int64_t row, std::span<std::uint8_t> weights,
           std::span<std::uint8_t> scales) const override {
    engram::synthetic_row(geometry_, 3, geometry_.layers[layer_index].layer, row, weights, scales);
  }
  void weights(const std::string& name, std::int64_t fan_in, std::int64_t first, std::span<Bf16> out) const override {
    engram::synthetic_weights(name, 3, fan_in, first, out);
  }

 private:
  const engram::Geometry& geometry_;
};

// One rank, two tables, five tokens whose step went right, computed with plain loops.
class StepCheck : public testing::Test {
 protected:
  StepCheck()
      : scenario(two_layers(1, 1, plan::TableMode::private_)),
        geometry(engram::make_geometry(scenario.model.base, 1.0)),
        shape(make_shape(scenario, plan::make_layout(scenario, geometry), geometry, 0)),
        reference(geometry) {
    batch.context = {-1, -1, -1, 4, 9, 9, -1, 5, 6, 7};  // a new request of two, then one with history of three
    batch.position = {3, 4, 9};
    batch.masked = {0, 0, 0};
    out.tokens.own = out.tokens.slot = out.tokens.lookup = 3;
    out.tokens.window = out.tokens.window_valid = out.tokens.padded = 3;
    out.masked = batch.masked;
    out.ids = reference_ids(geometry, batch, 0);
    std::vector<std::uint8_t> weights(static_cast<std::size_t>(geometry.row_weight_bytes()));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(geometry.row_scale_bytes()));
    for (int table = 0; table < shape.tables; ++table) {
      std::vector<Bf16> rows;
      for (std::int64_t token = 0; token < 3; ++token)
        for (int column = 0; column < shape.columns; ++column) {
          std::vector<Bf16> row(static_cast<std::size_t>(shape.dim));
          reference.row(static_cast<std::size_t>(table), id(token, table, column), weights, scales);
          engram::row_value(geometry, weights, scales, row);
          rows.insert(rows.end(), row.begin(), row.end());
        }
      out.rows.push_back(rows);
    }
    sample();
  }

  std::int32_t id(std::int64_t token, int table, int column) const {
    return out.ids[static_cast<std::size_t>((token * shape.tables + table) * shape.columns + column)];
  }

  // kv by plain float sums, hidden by the gate kernel.
  void sample() {
    samples.tokens = {0, 2};
    const std::int64_t width = shape.row_width();
    for (int table = 0; table < shape.tables; ++table) {
      const int layer = geometry.layers[static_cast<std::size_t>(table)].layer;
      std::vector<Bf16> w(static_cast<std::size_t>(shape.kv_width * width));
      reference.weights(weight_name(layer, "engram.wkv.weight"), width, 0, w);
      std::vector<Bf16> kv;
      for (const std::int64_t token : samples.tokens)
        for (std::int64_t o = 0; o < shape.kv_width; ++o) {
          float sum = 0;
          for (std::int64_t j = 0; j < width; ++j)
            sum += to_float(out.rows[static_cast<std::size_t>(table)][static_cast<std::size_t>(token * width + j)]) *
                   to_float(w[static_cast<std::size_t>(o * width + j)]);
          kv.push_back(to_bf16(sum));
        }
      std::vector<Bf16> hidden(2 * static_cast<std::size_t>(shape.copies * shape.hidden));
      engram::synthetic_weights("hidden", 3, 1, 0, hidden);
      samples.before.push_back(hidden);
      std::vector<Bf16> q(hidden.size() / 2), k(hidden.size() / 2);
      reference.weights(weight_name(layer, "engram.q_weight"), 1, 0, q);
      reference.weights(weight_name(layer, "engram.k_weight"), 1, 0, k);
      kernels::GateArgs args;
      args.hidden = hidden.data();
      args.kv = kv.data();
      args.q = q.data();
      args.k = k.data();
      args.tokens = 2;
      args.copies = shape.copies;
      args.dim = shape.hidden;
      kernels::gate_tokens(args, 0, 2);
      samples.kv.push_back(kv);
      samples.after.push_back(hidden);
    }
  }

  void check() {
    CheckFacts facts;
    check_hidden(shape, geometry, reference, out, samples, facts);
  }

  std::string hidden_error() {
    return error_of(Exit::bad_data, [&] { check(); });
  }

  plan::Scenario scenario;
  engram::Geometry geometry;
  StepShape shape;
  Reference reference;
  replay::StepBatch batch;
  StepOutput out;
  HiddenSamples samples;
};

TEST_F(StepCheck, ReferenceIdsFollowChunksAndTheirHistory) {
  const std::vector<std::int32_t> whole = engram::hash_ids(geometry, std::vector<std::int32_t>{-1, 5, 6, 7}, {}, 0);
  const auto row = static_cast<std::ptrdiff_t>(shape.tables * shape.columns);
  // The third token continues a request: as the last token of the whole sequence.
  EXPECT_TRUE(std::equal(whole.end() - row, whole.end(), out.ids.end() - row));
  const std::vector<std::int32_t> fresh = engram::hash_ids(geometry, std::vector<std::int32_t>{4, 9}, {}, 0);
  EXPECT_TRUE(std::equal(fresh.begin(), fresh.end(), out.ids.begin()));
}

TEST_F(StepCheck, RightOutputPasses) {
  CheckFacts facts;
  check_ids(shape, geometry, out, std::span(&batch, 1), 0, facts);
  check_rows(shape, geometry, reference, out, facts);
  check_hidden(shape, geometry, reference, out, samples, facts);
  EXPECT_EQ(facts.ids_compared, 3 * 2 * 8);
  EXPECT_EQ(facts.rows_compared, 3 * 2 * 8);
  ASSERT_TRUE(facts.hidden.has_value());
  EXPECT_EQ(facts.hidden->tokens, 4);
  EXPECT_LE(facts.hidden->max_error, 1.0);
}

TEST_F(StepCheck, AWrongIdIsNamed) {
  const std::int32_t right = id(1, 1, 5);
  out.ids[static_cast<std::size_t>((1 * shape.tables + 1) * shape.columns + 5)] = right + 1;
  const std::string error = error_of(Exit::bad_data, [&] {
    CheckFacts facts;
    check_ids(shape, geometry, out, std::span(&batch, 1), 0, facts);
  });
  EXPECT_EQ(error, "layer 3, replica 0 token 1, column 5: the row id should be " + std::to_string(right) + ", found " +
                       std::to_string(right + 1));
}

TEST_F(StepCheck, AWrongBitInARowIsNamed) {
  out.rows[1][static_cast<std::size_t>((2 * shape.columns + 7) * shape.dim + 63)].bits ^= 1;
  const std::string error = error_of(Exit::bad_data, [&] {
    CheckFacts facts;
    check_rows(shape, geometry, reference, out, facts);
  });
  EXPECT_THAT(error, HasSubstr("layer 3, token 2, column 7, row " + std::to_string(id(2, 1, 7)) + ": element 63"));
  EXPECT_THAT(error, testing::Not(HasSubstr("poison")));
}

TEST_F(StepCheck, PaddingOfAWindowMustBeZero) {
  out.tokens.window = 4;  // one more than there are tokens
  for (auto& rows : out.rows) rows.resize(rows.size() + static_cast<std::size_t>(shape.row_width()));
  CheckFacts facts;
  check_rows(shape, geometry, reference, out, facts);
  EXPECT_EQ(facts.rows_compared, 4 * 2 * 8);
  out.rows[0].back().bits = 1;
  EXPECT_THAT(error_of(Exit::bad_data, [&] { check_rows(shape, geometry, reference, out, facts); }),
              HasSubstr("token 3, column 7"));
}

TEST_F(StepCheck, KvOffByFourUlpsIsFound) {
  samples.kv[1][100].bits ^= 4;
  EXPECT_THAT(hidden_error(), HasSubstr("layer 3, token 0 of the window: kv[100]"));
}

TEST_F(StepCheck, HiddenOffByFourUlpsIsFound) {
  samples.after[0][static_cast<std::size_t>(shape.copies * shape.hidden + 70)].bits ^= 4;
  EXPECT_THAT(hidden_error(), HasSubstr("layer 1, token 2 of the window: hidden[70]"));
}

TEST_F(StepCheck, AGateThatDidNotRunIsFound) {
  samples.after[0] = samples.before[0];
  EXPECT_THAT(hidden_error(), HasSubstr("hidden["));
}

TEST_F(StepCheck, NanIsFound) {
  samples.after[1][3].bits = 0x7FC0;
  EXPECT_THAT(hidden_error(), HasSubstr("hidden[3]"));
}

TEST_F(StepCheck, AMaskedTokenKeepsItsBits) {
  out.masked[2] = 1;
  EXPECT_THAT(hidden_error(), HasSubstr("token 2"));
  for (int table = 0; table < 2; ++table) {
    const auto size = static_cast<std::ptrdiff_t>(shape.copies * shape.hidden);
    auto& after = samples.after[static_cast<std::size_t>(table)];
    std::copy_n(samples.before[static_cast<std::size_t>(table)].begin() + size, size, after.begin() + size);
  }
  EXPECT_NO_THROW(check());
}

TEST(SampleTokens, FirstAndLastAreAmongThem) {
  EXPECT_EQ(sample_tokens(0), (std::vector<std::int64_t>{}));
  EXPECT_EQ(sample_tokens(1), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(sample_tokens(2), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(sample_tokens(100), (std::vector<std::int64_t>{0, 33, 66, 99}));
}

}  // namespace
}  // namespace eb::rank::test
