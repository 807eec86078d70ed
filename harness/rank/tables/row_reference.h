// The two sources of what a row must be: recomputed synthetic content, or the checkpoint's files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "harness/base/bf16.h"
#include "harness/engram/geometry.h"
#include "harness/plan/scenario.h"

namespace eb::rank {

// Reads rows as the checkpoint or the synthetic content defines them, independent of the table in memory: the reference
// of a check.
class RowReference {
 public:
  virtual ~RowReference() = default;
  // Stored bytes of one row of entry `layer_index` of Geometry::layers.
  virtual void row(std::size_t layer_index, std::int64_t row, std::span<std::uint8_t> weights,
                   std::span<std::uint8_t> scales) const = 0;
  // BF16 weights: "layers.1.engram.wkv.weight" (dequantised), "....q_weight", "....k_weight". Elements [first, +size).
  virtual void weights(const std::string& name, std::int64_t fan_in, std::int64_t first, std::span<Bf16> out) const = 0;
};

// `geometry` must outlive the reference. Thread-safe.
[[nodiscard]] std::unique_ptr<RowReference> make_synthetic_reference(const engram::Geometry& geometry,
                                                                     std::uint64_t seed);
// Errors: as Checkpoint.
[[nodiscard]] std::unique_ptr<RowReference> make_checkpoint_reference(const engram::Geometry& geometry,
                                                                      const std::string& folder);
// Of storage.checkpoint, or synthetic of `seed` where that is empty.
[[nodiscard]] std::unique_ptr<RowReference> make_row_reference(const plan::Scenario& scenario,
                                                               const engram::Geometry& geometry);

}  // namespace eb::rank
