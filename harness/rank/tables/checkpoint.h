// A checkpoint's Engram tensors in a folder of safetensors files (docs/checkpoint.md). Thread-safe after construction.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/base/bf16.h"
#include "harness/engram/geometry.h"
#include "harness/rank/tables/safetensors.h"

namespace eb::rank {

class Checkpoint {
 public:
  // Reads the headers of every *.safetensors file in `folder` and checks dtype and shape of every Engram tensor that
  // `geometry` needs. Errors: Error(failure) for a folder that cannot be read; Error(bad_data) that names tensor and
  // file for a tensor that is missing, in two files, of a wrong dtype or shape, or whose rows are not the sum of the
  // geometry's primes.
  Checkpoint(const std::string& folder, const engram::Geometry& geometry);

  // Stored bytes of rows [first, first + count) of entry `layer_index` of Geometry::layers, densely packed:
  // weights[count][row_weight_bytes], scales[count][row_scale_bytes] (empty for bf16 rows).
  void rows(std::size_t layer_index, std::int64_t first, std::int64_t count, std::span<std::uint8_t> weights,
            std::span<std::uint8_t> scales) const;
  void row_weights(std::size_t layer_index, std::int64_t first, std::span<std::uint8_t> weights) const;
  void row_scales(std::size_t layer_index, std::int64_t first, std::span<std::uint8_t> scales) const;

  // Elements [first, first + out.size()) of "layers.N.engram.{wkv.weight,q_weight,k_weight}". wkv is stored in E4M3
  // with one UE8M0 scale a 32x32 block and comes dequantised: value x scale, rounded once.
  void weights(const std::string& name, std::int64_t first, std::span<Bf16> out) const;

  // File of a tensor, for the result's record of what was loaded.
  [[nodiscard]] const std::string& file_of(const std::string& tensor) const;

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* tensor = nullptr;
  };
  struct LayerTensors {
    Place weight;
    Place scale;
  };
  const Place& find(const std::string& name) const;
  Place require(const std::string& name, const char* dtype, const std::vector<std::int64_t>& shape) const;
  void index_folder();
  void check_layer(const engram::Geometry& geometry, const engram::LayerGeometry& layer);

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> places_;
  std::vector<LayerTensors> layers_;
  std::int64_t row_weight_bytes_ = 0;
  std::int64_t row_scale_bytes_ = 0;
};

}  // namespace eb::rank
