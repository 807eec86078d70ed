// The gate against the formula in float64, within the bound that gate.cpp states; and all variants bit for bit equal.
#include "kernels/gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu_variant.h"

namespace eb::kernels {
namespace {

struct Batch {
  std::vector<Bf16> hidden;
  std::vector<Bf16> kv;
  std::vector<Bf16> q;
  std::vector<Bf16> k;
  std::vector<std::uint8_t> masked;
  GateArgs args;

  Batch(std::int64_t tokens, std::int32_t copies, std::int32_t dim, bool with_mask, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const auto draw = [&](std::vector<Bf16>& to, std::int64_t count, float mean, float width) {
      to.resize(static_cast<std::size_t>(count));
      for (Bf16& value : to) value = to_bf16(mean + width * normal(random));
    };
    draw(hidden, tokens * copies * dim, 0, 1.5F);
    draw(kv, tokens * (copies + 1) * dim, 0, 0.7F);
    draw(q, copies * dim, 1, 0.3F);
    draw(k, copies * dim, 1, 0.3F);
    masked.resize(static_cast<std::size_t>(tokens));
    for (std::uint8_t& mask : masked) mask = random() % 3 == 0 ? 1 : 0;
    args.kv = kv.data();
    args.q = q.data();
    args.k = k.data();
    args.masked = with_mask ? masked.data() : nullptr;
    args.tokens = tokens;
    args.copies = copies;
    args.dim = dim;
  }
  [[nodiscard]] std::vector<Bf16> run(CpuVariant variant) {
    std::vector<Bf16> out = hidden;
    args.hidden = out.data();
    gate_tokens(args, 0, args.tokens / 2, variant);
    gate_tokens(args, args.tokens / 2, args.tokens, variant);
    return out;
  }
};

// Largest error of g: that of d (its three sums, each with relative error of its absolute terms) through the gate. The
// slope of sigmoid(sign(d)*sqrt(|d|)) is at most 1/(8*sqrt(|d|)) and below 1e-6 it is flat but for the step at 0.
struct Gate {
  double g = 0;
  double error = 0;
};

Gate reference_gate(const Batch& batch, std::int64_t token, std::int32_t copy) {
  const std::int32_t dim = batch.args.dim;
  const auto at = [](const std::vector<Bf16>& from, std::int64_t i) {
    return static_cast<double>(to_float(from[static_cast<std::size_t>(i)]));
  };
  double hidden2 = 0;
  double key2 = 0;
  double dot = 0;
  double dot_abs = 0;
  for (std::int32_t i = 0; i < dim; ++i) {
    const double hidden = at(batch.hidden, (token * batch.args.copies + copy) * dim + i);
    const double key = at(batch.kv, (token * (batch.args.copies + 1) + copy) * dim + i);
    const double product = hidden * at(batch.q, copy * dim + i) * at(batch.k, copy * dim + i) * key;
    hidden2 += hidden * hidden;
    key2 += key * key;
    dot += product;
    dot_abs += std::fabs(product);
  }
  const double eps = static_cast<double>(batch.args.eps);
  const double scale = 1 / std::sqrt(hidden2 / dim + eps) / std::sqrt(key2 / dim + eps) / std::sqrt(dim);
  const double d = dot * scale;
  const double root = std::sqrt(std::max(std::fabs(d), 1e-6));
  const double roundings = (dim / 32.0 + 1 + 5 + 3) * 0x1p-24;
  const double d_error = roundings * (dot_abs * scale + std::fabs(d));
  Gate gate;
  gate.g = 1 / (1 + std::exp(d < 0 ? root : -root));
  gate.error =
      d_error >= std::fabs(d) ? 1 : d_error / (8 * std::sqrt(std::max(std::fabs(d) - d_error, 1e-6))) + 0x1p-24;
  return gate;
}

TEST(Gate, WithinTheStatedBoundOfFloat64) {
  for (const std::int32_t dim : {1, 7, 16, 31, 32, 33, 64, 250, 512, 5120}) {
    Batch batch(9, dim == 64 ? 2 : 4, dim, true, static_cast<std::uint64_t>(dim));
    for (const CpuVariant variant : supported_variants()) {
      const std::vector<Bf16> out = batch.run(variant);
      for (std::int64_t token = 0; token < batch.args.tokens; ++token) {
        for (std::int32_t copy = 0; copy < batch.args.copies; ++copy) {
          const Gate gate = reference_gate(batch, token, copy);
          ASSERT_LT(gate.error, dim >= 32 ? 1e-3 : 1.1) << "the bound must say something";
          for (std::int32_t i = 0; i < dim; ++i) {
            const auto at = static_cast<std::size_t>((token * batch.args.copies + copy) * dim + i);
            if (batch.masked[static_cast<std::size_t>(token)] != 0) {
              ASSERT_EQ(out[at].bits, batch.hidden[at].bits);
              continue;
            }
            const auto value = static_cast<double>(to_float(
                batch.kv[static_cast<std::size_t>((token * (batch.args.copies + 1) + batch.args.copies) * dim + i)]));
            const double expected = static_cast<double>(to_float(batch.hidden[at])) + gate.g * value;
            // Product and sum round once each in float32; BF16 keeps 8 significant bits.
            const double bound = gate.error * std::fabs(value) + 0x1p-23 * (std::fabs(expected) + std::fabs(value)) +
                                 0x1p-8 * std::fabs(expected) * 1.01;
            ASSERT_NEAR(static_cast<double>(to_float(out[at])), expected, bound)
                << name(variant) << " dim " << dim << " token " << token << " copy " << copy << " element " << i;
          }
        }
      }
    }
  }
}

TEST(Gate, VariantsGiveTheSameBits) {
  for (const std::int32_t dim : {5, 48, 64, 100, 512, 5120}) {
    Batch batch(6, 4, dim, false, 100 + static_cast<std::uint64_t>(dim));
    const std::vector<Bf16> expected = batch.run(CpuVariant::baseline);
    for (const CpuVariant variant : supported_variants()) {
      EXPECT_TRUE(batch.run(variant) == expected) << name(variant) << " dim " << dim;
    }
  }
}

// sign(0) = +1 and the floor of 1e-6 under the root: g = sigmoid(1e-3) for a dot of exactly 0.
TEST(Gate, ZeroDotHasPositiveSign) {
  Batch batch(1, 1, 32, false, 5);
  for (std::size_t i = 0; i < 32; ++i) {
    batch.kv[i] = Bf16{};
    batch.hidden[i] = Bf16{};
    batch.kv[32 + i] = to_bf16(1.0F);
  }
  for (const CpuVariant variant : supported_variants()) {
    EXPECT_EQ(batch.run(variant)[3].bits, to_bf16(static_cast<float>(1 / (1 + std::exp(-1e-3)))).bits);
  }
}

// Denormals, infinities and NaN take the same way in every variant.
TEST(Gate, ExtremeValuesKeepVariantsEqual) {
  Batch batch(4, 2, 64, false, 6);
  const std::uint16_t odd[] = {0x0001, 0x8003, 0x7F80, 0x7FC0, 0xFFFF, 0x7F7F, 0x0080, 0x7F81};
  for (std::size_t i = 0; i < batch.kv.size(); i += 5) batch.kv[i].bits = odd[i % 8];
  for (std::size_t i = 0; i < 64; i += 3) batch.hidden[i].bits = odd[i % 3];
  const std::vector<Bf16> expected = batch.run(CpuVariant::baseline);
  for (const CpuVariant variant : supported_variants()) {
    const std::vector<Bf16> out = batch.run(variant);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool both_nan = std::isnan(to_float(out[i])) && std::isnan(to_float(expected[i]));
      ASSERT_TRUE(both_nan || out[i].bits == expected[i].bits) << name(variant) << " " << i;
    }
  }
}

}  // namespace
}  // namespace eb::kernels
