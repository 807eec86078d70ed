#include "harness/engram/geometry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "harness/base/error.h"
#include "harness/engram/numpy_random.h"

namespace eb::engram {

namespace {

constexpr int kMaxColumns = 64;
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();  // row ids are int32
constexpr std::int64_t kSmallestPrimeStart = 64;

// Trial division: values stay below 2^31, so at most 46,341 divisions, and a model needs some dozens of primes.
bool is_prime(std::int64_t value) noexcept {
  if (value < 4) return value >= 2;
  if (value % 2 == 0 || value % 3 == 0) return false;
  for (std::int64_t d = 5; d * d <= value; d += 6) {
    if (value % d == 0 || value % (d + 2) == 0) return false;
  }
  return true;
}

// Bucket ranges of one layer: for each n-gram size the search starts anew at `start`, and a prime serves once in the
// whole model. Source of the rule: vLLM db9527a, engram.py.
std::vector<std::int64_t> layer_primes(const Model& model, std::int64_t start, std::unordered_set<std::int64_t>& used) {
  std::vector<std::int64_t> primes;
  for (std::size_t n = 0; n < model.ngram_sizes.size(); ++n) {
    std::int64_t value = start - 1;
    for (int head = 0; head < model.heads_per_ngram; ++head) {
      do {
        ++value;
      } while (!is_prime(value) || used.contains(value));
      used.insert(value);
      primes.push_back(value);
    }
  }
  return primes;
}

// One odd multiplier a look-back, so that value * multiplier fits int64 for every compressed id.
std::array<std::int64_t, kMaxNgram> layer_multipliers(int layer, std::int64_t compressed_vocab) noexcept {
  NumpyGenerator generator(std::uint64_t{10007} * static_cast<std::uint64_t>(layer));
  const std::int64_t high = std::numeric_limits<std::int64_t>::max() / compressed_vocab / 2;
  std::array<std::int64_t, kMaxNgram> multipliers{};
  for (auto& multiplier : multipliers) multiplier = generator.below(high) * 2 + 1;
  return multipliers;
}

void check(bool holds, const Model& model, const std::string& what) {
  if (!holds) fail(Exit::usage, "model {}: {}", model.preset.empty() ? "(own geometry)" : model.preset, what);
}

template <typename T>
bool ascending(const std::vector<T>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::greater_equal<T>()) == values.end();
}

int column_count(const Model& model) {
  check(!model.layers.empty() && model.layers.front() >= 0 && ascending(model.layers), model,
        "layers must be a list of at least one backbone layer, each 0 or more, ascending");
  check(!model.ngram_sizes.empty() && model.ngram_sizes.front() >= 2 && model.ngram_sizes.back() <= kMaxNgram &&
            ascending(model.ngram_sizes),
        model, fmt::format("ngram_sizes must be a list of at least one of 2..{}, ascending", kMaxNgram));
  const auto sizes = static_cast<int>(model.ngram_sizes.size());
  check(model.heads_per_ngram >= 1 && model.heads_per_ngram <= kMaxColumns / sizes, model,
        fmt::format("{} n-gram sizes x {} heads: a layer has 1..{} hash columns", sizes, model.heads_per_ngram,
                    kMaxColumns));
  return sizes * model.heads_per_ngram;
}

void check_row_format(const Model& model) {
  constexpr int kMaxDim = 1 << 16;
  check(model.dim >= 16 && model.dim <= kMaxDim && model.dim % 16 == 0, model,
        fmt::format("dim is {}, must be a multiple of 16 in 16..{}", model.dim, kMaxDim));
  if (model.format == RowFormat::bf16) {
    check(model.block == 0, model, fmt::format("block is {}, bf16 rows have no scales: set it to 0", model.block));
  } else {
    check(model.block >= 1 && model.dim % model.block == 0, model,
          fmt::format("block is {}, must divide dim {}", model.block, model.dim));
  }
}

void check_vocabulary_and_width(const Model& model) {
  constexpr std::int64_t kMaxVocab = std::numeric_limits<std::int32_t>::max();
  check(model.compressed_vocab >= 1 && model.compressed_vocab <= kMaxVocab, model,
        fmt::format("compressed_vocab is {}, must be in 1..{}", model.compressed_vocab, kMaxVocab));
  check(model.raw_vocab >= 1 && model.raw_vocab <= kMaxVocab, model,
        fmt::format("raw_vocab is {}, must be in 1..{}", model.raw_vocab, kMaxVocab));
  check(model.pad_token >= 0 && model.pad_token < model.raw_vocab, model,
        fmt::format("pad_token is {}, must be a raw token id in 0..{}", model.pad_token, model.raw_vocab - 1));
  check(model.hidden >= 1 && model.hidden <= 1 << 20, model, fmt::format("hidden_size is {}", model.hidden));
  check(model.hc_mult >= 1 && model.hc_mult <= 64, model, fmt::format("hc_mult is {}", model.hc_mult));
  check(std::isfinite(model.rms_eps) && model.rms_eps >= 0, model, fmt::format("rms_eps is {}", model.rms_eps));
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row[b.size()];
}

Model deepseek_v41_flash() {
  Model model;
  model.preset = "deepseek-v4.1-flash";
  model.layers = {1, 14};
  model.ngram_sizes = {2, 3, 4};
  model.heads_per_ngram = 8;
  model.prime_start = 16'000'000;
  model.dim = 256;
  model.block = 32;
  model.compressed_vocab = 99'092;
  model.raw_vocab = 129'280;
  model.pad_token = 2;
  model.hidden = 5120;
  model.hc_mult = 4;
  return model;
}

Model tiny() {
  Model model;
  model.preset = "tiny";
  model.layers = {0};
  model.ngram_sizes = {2};
  model.heads_per_ngram = 8;  // 7 is the other case of interest: the first seven of these
  model.head_rows = {97, 101, 103, 107, 109, 113, 127, 131};
  model.dim = 64;
  model.block = 32;
  model.compressed_vocab = 32;
  model.raw_vocab = 32;
  model.pad_token = 0;
  model.hidden = 64;
  model.hc_mult = 2;
  return model;
}

// Rows of plain BF16 that a token addresses directly, 24 of them; no hash, so the columns only divide the table evenly.
Model deepep_default() {
  constexpr int kColumns = 24;
  constexpr std::int64_t kEntries = 524'288;
  Model model;
  model.preset = "deepep-default";
  model.layers = {0};
  model.ngram_sizes = {2, 3, 4};
  model.heads_per_ngram = 8;
  for (int column = 0; column < kColumns; ++column) {
    model.head_rows.push_back(kEntries / kColumns + (column < kEntries % kColumns ? 1 : 0));
  }
  model.dim = 128;
  model.format = RowFormat::bf16;
  model.compressed_vocab = 1;
  model.raw_vocab = 1;
  model.hidden = 128;
  model.hc_mult = 1;
  model.ids_given = true;
  return model;
}

}  // namespace

std::int64_t Geometry::row_weight_bytes() const noexcept {
  return model.format == RowFormat::bf16 ? std::int64_t{2} * model.dim : model.dim;
}

std::int64_t Geometry::row_scale_bytes() const noexcept {
  return model.format == RowFormat::bf16 ? 0 : model.dim / model.block;
}

std::int64_t Geometry::row_stride(Layout layout) const noexcept {
  const std::int64_t bytes = row_weight_bytes() + row_scale_bytes();
  return layout == Layout::split ? bytes : (bytes + 15) / 16 * 16;
}

std::int64_t Geometry::table_bytes(std::size_t layer_index, Layout layout) const noexcept {
  return layers[layer_index].rows * row_stride(layout);
}

std::vector<std::string> preset_names() { return {"deepseek-v4.1-flash", "tiny", "deepep-default"}; }

Model preset(const std::string& name) {
  if (name == "deepseek-v4.1-flash") return deepseek_v41_flash();
  if (name == "tiny") return tiny();
  if (name == "deepep-default") return deepep_default();
  const auto names = preset_names();
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  fail(Exit::usage, "unknown model preset '{}': did you mean '{}'? There are: {}", name, *nearest,
       fmt::join(names, ", "));
}

Geometry make_geometry(const Model& model, double table_scale) {
  Geometry geometry;
  geometry.model = model;
  geometry.columns = column_count(model);
  check_row_format(model);
  check_vocabulary_and_width(model);
  check(std::isfinite(table_scale) && table_scale > 0, model,
        fmt::format("table_scale is {}, must be above 0", table_scale));
  const bool given = !model.head_rows.empty();
  std::int64_t start = 0;
  if (given) {
    check(table_scale == 1.0, model,
          fmt::format("table_scale is {}, but its rows are given outright (head_rows): set it to 1", table_scale));
    check(static_cast<int>(model.head_rows.size()) >= geometry.columns, model,
          fmt::format("head_rows has {} entries for {} hash columns", model.head_rows.size(), geometry.columns));
    check(std::ranges::all_of(model.head_rows, [](std::int64_t r) { return r >= 1 && r <= kMaxRows; }), model,
          fmt::format("head_rows must be in 1..{}", kMaxRows));
  } else {
    check(model.prime_start >= 2 && model.prime_start <= kMaxRows, model,
          fmt::format("prime_start is {}, must be in 2..{}", model.prime_start, kMaxRows));
    const double scaled = std::floor(static_cast<double>(model.prime_start) * table_scale);
    check(scaled * geometry.columns <= static_cast<double>(kMaxRows), model,
          fmt::format("prime_start {} x table_scale {} x {} columns is beyond the {} rows that int32 ids reach",
                      model.prime_start, table_scale, geometry.columns, kMaxRows));
    start = std::max(kSmallestPrimeStart, static_cast<std::int64_t>(scaled));
  }
  std::unordered_set<std::int64_t> used;
  for (const int layer : model.layers) {
    LayerGeometry entry;
    entry.layer = layer;
    entry.head_rows =
        given ? std::vector<std::int64_t>(model.head_rows.begin(), model.head_rows.begin() + geometry.columns)
              : layer_primes(model, start, used);
    for (const std::int64_t rows : entry.head_rows) {
      entry.head_offsets.push_back(entry.rows);
      entry.rows += rows;
    }
    check(entry.rows <= kMaxRows, model,
          fmt::format("layer {} has {} rows, beyond the {} that int32 ids reach", layer, entry.rows, kMaxRows));
    entry.multipliers = layer_multipliers(layer, model.compressed_vocab);
    geometry.layers.push_back(std::move(entry));
  }
  return geometry;
}

}  // namespace eb::engram
