// The float64 reference of projection and gate, and the bounds it is compared within. u = 2^-24 (float32), v = 2^-8
// (BF16, relative, to nearest). A sum of n float32 terms in any order is off by at most gamma(n) times the sum of their
// absolute values, gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
#include <algorithm>
#include <cmath>

#include "harness/base/error.h"
#include "harness/rank/step/step_check.h"

namespace eb::rank {
namespace {

constexpr double kBf16Half = 0x1p-8;
// Room for a kernel's rsqrt, sqrt and exp, which need not be correctly rounded.
constexpr double kRsqrtError = 0x1p-20;
constexpr double kSigmoidError = 0x1p-18;
constexpr double kSmallest = 0x1p-120;  // absolute floor: results near zero round absolutely
// Products spent on the wkv reference of a slot; beyond it every stride-th output is compared.
constexpr std::int64_t kProductBudget = 32'000'000;

double gamma(std::int64_t terms) {
  const double nu = static_cast<double>(terms) * 0x1p-24;
  return nu / (1 - nu);
}

double value(Bf16 x) { return static_cast<double>(to_float(x)); }

double sigmoid_of_gate(double d) {
  const double root = std::sqrt(std::max(std::abs(d), 1e-6));
  return 1.0 / (1.0 + std::exp(d < 0 ? root : -root));
}

struct Compared {
  const char* what;
  int layer;
  std::int64_t token;
  std::int64_t place;
};

void compare(const Compared& at, double wanted, Bf16 found, double bound, HiddenCheck& check) {
  if (!std::isfinite(wanted)) return;  // a checkpoint's own infinities
  const double error = std::abs(value(found) - wanted);
  if (!(error <= bound))  // a NaN fails too
    fail(Exit::bad_data, "layer {}, token {} of the window: {}[{}] should be {} within {}, found {}", at.layer,
         at.token, at.what, at.place, wanted, bound, value(found));
  if (bound > 0) check.max_error = std::max(check.max_error, error / bound);
}

void check_kv(const StepShape& shape, int layer, const RowReference& reference, std::span<const Bf16> rows,
              std::span<const Bf16> kv, std::span<const std::int64_t> tokens, HiddenCheck& check) {
  const std::int64_t width = shape.row_width();
  const std::int64_t samples = static_cast<std::int64_t>(tokens.size());
  const std::int64_t products = shape.kv_width * width * samples * shape.tables;
  const std::int64_t stride = std::max<std::int64_t>(1, products / kProductBudget) | 1;  // odd: meets every head's part
  std::vector<Bf16> weights(static_cast<std::size_t>(width));
  for (std::int64_t out = 0; out < shape.kv_width; out += stride) {
    reference.weights(weight_name(layer, "engram.wkv.weight"), width, out * width, weights);
    for (std::int64_t i = 0; i < samples; ++i) {
      const Bf16* row = rows.data() + tokens[static_cast<std::size_t>(i)] * width;
      double sum = 0;
      double size = 0;
      for (std::int64_t j = 0; j < width; ++j) {
        const double product = value(row[j]) * value(weights[static_cast<std::size_t>(j)]);
        sum += product;
        size += std::abs(product);
      }
      const double summed = gamma(width) * size;
      const double bound = summed + kBf16Half * (std::abs(sum) + summed) + kSmallest;
      compare({"kv", layer, tokens[static_cast<std::size_t>(i)], out}, sum,
              kv[static_cast<std::size_t>(i * shape.kv_width + out)], bound, check);
    }
  }
}

// One copy of one token. d's error: its dot product's summation, then the relative errors of both norms; g is monotone
// in d, so g(d - error) and g(d + error) enclose it, also where d changes sign.
void check_copy(const StepShape& shape, double eps, const Compared& at, const Bf16* hidden, const Bf16* key,
                const Bf16* values, const Bf16* q, const Bf16* k, bool masked, const Bf16* after, HiddenCheck& check) {
  const int dim = shape.hidden;
  double dot = 0, dot_size = 0, hidden_square = 0, key_square = 0;
  for (int i = 0; i < dim; ++i) {
    const double product = value(hidden[i]) * value(q[i]) * value(k[i]) * value(key[i]);
    dot += product;
    dot_size += std::abs(product);
    hidden_square += value(hidden[i]) * value(hidden[i]);
    key_square += value(key[i]) * value(key[i]);
  }
  const double norm = 1.0 / std::sqrt(hidden_square / dim + eps) / std::sqrt(key_square / dim + eps) / std::sqrt(dim);
  const double d = dot * norm;
  const double summed = gamma(dim + 4);
  const double relative = summed + 2 * kRsqrtError + gamma(4);  // two norms, each half of its sum's error
  const double d_error = dot_size * norm * summed * (1 + relative) + std::abs(d) * relative + kSmallest;
  const double g = masked ? 0 : sigmoid_of_gate(d);
  const double g_error =
      masked ? 0 : std::max(sigmoid_of_gate(d + d_error) - g, g - sigmoid_of_gate(d - d_error)) + kSigmoidError;
  for (int i = 0; i < dim; ++i) {
    const double v = value(values[i]);
    const double wanted = value(hidden[i]) + g * v;
    const double computed = std::abs(v) * g_error + gamma(4) * (std::abs(value(hidden[i])) + std::abs(v));
    // A masked token keeps its bits.
    const double bound = masked ? 0 : computed + kBf16Half * (std::abs(wanted) + computed) + kSmallest;
    compare({at.what, at.layer, at.token, at.place + i}, wanted, after[i], bound, check);
  }
}

}  // namespace

void check_hidden(const StepShape& shape, const engram::Geometry& geometry, const RowReference& reference,
                  const StepOutput& output, const HiddenSamples& samples, CheckFacts& facts) {
  HiddenCheck check;
  const std::int64_t token_size = std::int64_t{shape.copies} * shape.hidden;
  std::vector<Bf16> q(static_cast<std::size_t>(token_size));
  std::vector<Bf16> k(q.size());
  for (int table = 0; table < shape.tables; ++table) {
    const auto place = static_cast<std::size_t>(table);
    const int layer = geometry.layers[place].layer;
    reference.weights(weight_name(layer, "engram.q_weight"), 1, 0, q);
    reference.weights(weight_name(layer, "engram.k_weight"), 1, 0, k);
    check_kv(shape, layer, reference, output.rows[place], samples.kv[place], samples.tokens, check);
    for (std::size_t i = 0; i < samples.tokens.size(); ++i) {
      const std::int64_t token = samples.tokens[i];
      const Bf16* kv = samples.kv[place].data() + static_cast<std::int64_t>(i) * shape.kv_width;
      const bool masked = output.masked[static_cast<std::size_t>(output.tokens.window_first + token)] != 0;
      for (std::int64_t copy = 0; copy < shape.copies; ++copy) {
        const std::int64_t at = copy * shape.hidden;
        const std::int64_t row = static_cast<std::int64_t>(i) * token_size + at;
        check_copy(shape, geometry.model.rms_eps, {"hidden", layer, token, at}, samples.before[place].data() + row,
                   kv + at, kv + token_size, q.data() + at, k.data() + at, masked, samples.after[place].data() + row,
                   check);
      }
    }
    check.tokens += static_cast<std::int64_t>(samples.tokens.size());
  }
  facts.hidden = check;
}

}  // namespace eb::rank
