// Writes safetensors files for tests.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "harness/engram/content.h"
#include "harness/engram/geometry.h"

namespace eb::rank::testing {

struct FileTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> data;
};

inline void write_safetensors(const std::string& path, const std::vector<FileTensor>& tensors) {
  std::string header = "{";
  std::size_t offset = 0;
  for (const FileTensor& tensor : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      header += (i > 0 ? "," : "") + std::to_string(tensor.shape[i]);
    }
    header +=
        "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + tensor.data.size()) + "]}";
    offset += tensor.data.size();
  }
  header += "}";
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(header.size() >> (8 * i)));
  file << header;
  for (const FileTensor& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()));
  }
}

// The Engram tensors of layer `layer_index`: rows are the synthetic content of `seed`; wkv bytes and scales a pattern.
inline std::vector<FileTensor> layer_tensors(const engram::Geometry& geometry, std::size_t layer_index,
                                             std::uint64_t seed) {
  const engram::Model& model = geometry.model;
  const engram::LayerGeometry& layer = geometry.layers[layer_index];
  const std::string prefix = "layers." + std::to_string(layer.layer) + ".engram.";
  const auto weight_bytes = static_cast<std::size_t>(geometry.row_weight_bytes());
  const auto scale_bytes = static_cast<std::size_t>(geometry.row_scale_bytes());
  const auto rows = static_cast<std::size_t>(layer.rows);
  FileTensor weight{prefix + "embed.weight", "F8_E4M3", {layer.rows, model.dim}, {}};
  FileTensor scale{prefix + "embed.scale", "F8_E8M0", {layer.rows, geometry.row_scale_bytes()}, {}};
  weight.data.resize(rows * weight_bytes);
  scale.data.resize(rows * scale_bytes);
  for (std::size_t r = 0; r < rows; ++r) {
    engram::synthetic_row(geometry, seed, layer.layer, static_cast<std::int64_t>(r),
                          std::span(weight.data).subspan(r * weight_bytes, weight_bytes),
                          std::span(scale.data).subspan(r * scale_bytes, scale_bytes));
  }
  const std::int64_t n = std::int64_t{model.hidden} * (model.hc_mult + 1);
  const std::int64_t k = std::int64_t{geometry.columns} * model.dim;
  FileTensor wkv{prefix + "wkv.weight", "F8_E4M3", {n, k}, std::vector<std::uint8_t>(static_cast<std::size_t>(n * k))};
  for (std::size_t i = 0; i < wkv.data.size(); ++i) wkv.data[i] = static_cast<std::uint8_t>(i * 7 % 0x7F);
  FileTensor wkv_scale{prefix + "wkv.scale", "F8_E8M0", {(n + 31) / 32, (k + 31) / 32}, {}};
  wkv_scale.data.resize(static_cast<std::size_t>(wkv_scale.shape[0] * wkv_scale.shape[1]));
  for (std::size_t i = 0; i < wkv_scale.data.size(); ++i) wkv_scale.data[i] = static_cast<std::uint8_t>(120 + i % 11);
  FileTensor q{prefix + "q_weight", "BF16", {model.hc_mult, model.hidden}, {}};
  q.data.resize(static_cast<std::size_t>(model.hc_mult) * static_cast<std::size_t>(model.hidden) * 2);
  for (std::size_t i = 0; i < q.data.size(); ++i) q.data[i] = static_cast<std::uint8_t>(i % 60);
  FileTensor k_weight = q;
  k_weight.name = prefix + "k_weight";
  return {weight, scale, wkv, wkv_scale, q, k_weight};
}

}  // namespace eb::rank::testing
