// The shape of Engram tables: which layers have one, how many rows each hash column owns, how a row is stored.
// Pure: knows neither the OS nor CUDA nor JSON.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace eb::engram {

inline constexpr int kMaxNgram = 4;             // look-back 0..3
inline constexpr std::int32_t kDeadToken = -1;  // a token that hashes as "blocked" (image spans)
inline constexpr std::int32_t kDeadId = -1;     // DEAD_ID: padding of an id exchange; reads a zero row

enum class RowFormat { e4m3_ue8m0, bf16 };
// split: all weights of the table, then all scales (the checkpoint's layout).
// interleaved: a row's scales behind its weights, stride rounded up to 16 B, pad bytes 0.
enum class Layout { split, interleaved };

// What a preset or a scenario states; `make_geometry` derives the rest.
struct Model {
  std::string preset;
  std::vector<int> layers;       // backbone layers (0-based) that have a table, ascending
  std::vector<int> ngram_sizes;  // ascending, each 2..kMaxNgram
  int heads_per_ngram = 0;
  std::int64_t prime_start = 0;  // prime search start; unused where head_rows is given
  // Rows of each hash column, given outright (preset tiny, deepep-default); empty: from the prime search.
  std::vector<std::int64_t> head_rows;
  int dim = 0;    // elements of a row
  int block = 0;  // columns that share one scale; 0 for bf16 rows
  RowFormat format = RowFormat::e4m3_ue8m0;
  std::int64_t compressed_vocab = 0;
  std::int64_t raw_vocab = 0;
  std::int32_t pad_token = 0;  // a raw token id
  int hidden = 0;
  int hc_mult = 0;
  double rms_eps = 1e-6;
  bool ids_given = false;  // ids do not come from a hash (deepep-default)
};

struct LayerGeometry {
  int layer = 0;                                      // backbone layer
  std::vector<std::int64_t> head_rows;                // [columns]: the primes
  std::vector<std::int64_t> head_offsets;             // [columns]: running sum
  std::int64_t rows = 0;                              // sum of head_rows
  std::array<std::int64_t, kMaxNgram> multipliers{};  // per look-back 0..3
};

struct Geometry {
  Model model;
  int columns = 0;  // hash columns a layer = ngram sizes x heads
  std::vector<LayerGeometry> layers;

  [[nodiscard]] std::int64_t row_weight_bytes() const noexcept;
  [[nodiscard]] std::int64_t row_scale_bytes() const noexcept;          // 0 for bf16 rows
  [[nodiscard]] std::int64_t row_stride(Layout layout) const noexcept;  // bytes a row occupies in all
  [[nodiscard]] std::int64_t table_bytes(std::size_t layer_index, Layout layout) const noexcept;
};

// `deepseek-v4.1-flash`, `tiny`, `deepep-default`. Errors: Error(usage) that names the nearest preset.
[[nodiscard]] Model preset(const std::string& name);
[[nodiscard]] std::vector<std::string> preset_names();

// Scales the prime search start to max(64, floor(start * table_scale)) and derives rows, offsets and multipliers.
// Errors: Error(usage) for a model that is out of range (no layers, columns beyond 64, rows beyond int32, ...).
[[nodiscard]] Geometry make_geometry(const Model& model, double table_scale);

}  // namespace eb::engram
