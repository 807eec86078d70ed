// The gate beside the slow Python reference (tests/python/make_gate_reference.py), in every variant that this CPU runs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu_variant.h"
#include "kernels/gate.h"

namespace eb::kernels {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  template <typename T>
  std::vector<T> take(std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    const std::size_t size = values.size() * sizeof(T);
    if (at_ + size > bytes_.size()) throw std::runtime_error("gate.bin is too short");
    std::memcpy(values.data(), bytes_.data() + at_, size);
    at_ += size;
    return values;
  }
  [[nodiscard]] bool done() const { return at_ == bytes_.size(); }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

TEST(GateReference, EveryVariantRoundsTheReference) {
  Reader file(std::string(EB_TEST_DATA) + "/domain/gate.bin");
  const auto shape = file.take<std::int32_t>(3);
  const std::int64_t tokens = shape[0];
  const std::int64_t copies = shape[1];
  const std::int64_t dim = shape[2];
  const auto hidden = file.take<Bf16>(tokens * copies * dim);
  const auto kv = file.take<Bf16>(tokens * (copies + 1) * dim);
  const auto q = file.take<Bf16>(copies * dim);
  const auto k = file.take<Bf16>(copies * dim);
  const auto masked = file.take<std::uint8_t>(tokens);
  const auto expected = file.take<double>(tokens * copies * dim);
  ASSERT_TRUE(file.done());
  for (const CpuVariant variant : supported_variants()) {
    std::vector<Bf16> out = hidden;
    GateArgs args;
    args.hidden = out.data();
    args.kv = kv.data();
    args.q = q.data();
    args.k = k.data();
    args.masked = masked.data();
    args.tokens = tokens;
    args.copies = static_cast<std::int32_t>(copies);
    args.dim = static_cast<std::int32_t>(dim);
    args.eps = 1e-6F;
    gate_tokens(args, 0, tokens, variant);
    std::size_t same = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      // Half a step of BF16 for the one rounding, and what float32 sums of a few hundred terms can be off.
      EXPECT_NEAR(to_float(out[i]), expected[i], std::fabs(expected[i]) * 0x1p-8 + 1e-5) << "element " << i;
      same += out[i] == to_bf16(static_cast<float>(expected[i])) ? 1 : 0;
    }
    EXPECT_GT(same, out.size() * 99 / 100) << "elements that round alike";
  }
}

}  // namespace
}  // namespace eb::kernels
