#include "harness/rank/tables/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "harness/base/error.h"
#include "harness/engram/content.h"

namespace eb::rank {

namespace {

constexpr std::int64_t kWkvBlock = 32;  // edge of a block of wkv that shares one scale

std::string tensor_name(int layer, const char* part) { return fmt::format("layers.{}.engram.{}", layer, part); }

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder, const engram::Geometry& geometry)
    : folder_(folder), row_weight_bytes_(geometry.row_weight_bytes()), row_scale_bytes_(geometry.row_scale_bytes()) {
  index_folder();
  for (const engram::LayerGeometry& layer : geometry.layers) check_layer(geometry, layer);
}

void Checkpoint::index_folder() {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator item(folder_, error), end; !error && item != end; item.increment(error)) {
    if (item->path().extension() == ".safetensors") paths.push_back(item->path().string());
  }
  if (error) fail(Exit::failure, "checkpoint {}: {}", folder_, error.message());
  if (paths.empty()) fail(Exit::failure, "checkpoint {}: no *.safetensors file in this folder", folder_);
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    files_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const TensorInfo& tensor : files_.back()->tensors()) {
      const auto [place, added] = places_.try_emplace(tensor.name, Place{files_.back().get(), &tensor});
      if (!added) {
        fail(Exit::bad_data, "{}: tensor {} is also in {}", path, tensor.name, place->second.file->path());
      }
    }
  }
}

const Checkpoint::Place& Checkpoint::find(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    fail(Exit::bad_data, "checkpoint {}: tensor {} is missing: none of its {} files has it", folder_, name,
         files_.size());
  }
  return found->second;
}

Checkpoint::Place Checkpoint::require(const std::string& name, const char* dtype,
                                      const std::vector<std::int64_t>& shape) const {
  const Place& place = find(name);
  const std::vector<std::uint64_t> wanted(shape.begin(), shape.end());
  if (place.tensor->dtype != dtype) {
    fail(Exit::bad_data, "{}: tensor {}: dtype {}, wanted {}", place.file->path(), name, place.tensor->dtype, dtype);
  }
  if (place.tensor->shape != wanted) {
    fail(Exit::bad_data, "{}: tensor {}: shape [{}], wanted [{}]", place.file->path(), name,
         fmt::join(place.tensor->shape, ", "), fmt::join(wanted, ", "));
  }
  return place;
}

void Checkpoint::check_layer(const engram::Geometry& geometry, const engram::LayerGeometry& layer) {
  const engram::Model& model = geometry.model;
  const bool quantised = model.format == engram::RowFormat::e4m3_ue8m0;
  const std::string embed = tensor_name(layer.layer, "embed.weight");
  const Place& found = find(embed);
  if (!found.tensor->shape.empty() && found.tensor->shape[0] != static_cast<std::uint64_t>(layer.rows)) {
    fail(Exit::bad_data, "{}: tensor {}: {} rows, but the hash columns of layer {} own {} (check model.table_scale)",
         found.file->path(), embed, found.tensor->shape[0], layer.layer, layer.rows);
  }
  LayerTensors tensors;
  tensors.weight = require(embed, quantised ? "F8_E4M3" : "BF16", {layer.rows, model.dim});
  if (quantised) {
    tensors.scale = require(tensor_name(layer.layer, "embed.scale"), "F8_E8M0", {layer.rows, row_scale_bytes_});
  }
  layers_.push_back(tensors);
  if (model.hidden == 0) return;  // tables alone
  const std::int64_t n = std::int64_t{model.hidden} * (model.hc_mult + 1);
  const std::int64_t k = std::int64_t{geometry.columns} * model.dim;
  require(tensor_name(layer.layer, "wkv.weight"), "F8_E4M3", {n, k});
  require(tensor_name(layer.layer, "wkv.scale"), "F8_E8M0",
          {(n + kWkvBlock - 1) / kWkvBlock, (k + kWkvBlock - 1) / kWkvBlock});
  require(tensor_name(layer.layer, "q_weight"), "BF16", {model.hc_mult, model.hidden});
  require(tensor_name(layer.layer, "k_weight"), "BF16", {model.hc_mult, model.hidden});
}

void Checkpoint::row_weights(std::size_t layer_index, std::int64_t first, std::span<std::uint8_t> weights) const {
  const Place& place = layers_.at(layer_index).weight;
  place.file->read(*place.tensor, static_cast<std::uint64_t>(first * row_weight_bytes_), weights);
}

void Checkpoint::row_scales(std::size_t layer_index, std::int64_t first, std::span<std::uint8_t> scales) const {
  if (scales.empty()) return;
  const Place& place = layers_.at(layer_index).scale;
  place.file->read(*place.tensor, static_cast<std::uint64_t>(first * row_scale_bytes_), scales);
}

void Checkpoint::rows(std::size_t layer_index, std::int64_t first, std::int64_t count, std::span<std::uint8_t> weights,
                      std::span<std::uint8_t> scales) const {
  row_weights(layer_index, first, weights.first(static_cast<std::size_t>(count * row_weight_bytes_)));
  row_scales(layer_index, first, scales.first(static_cast<std::size_t>(count * row_scale_bytes_)));
}

void Checkpoint::weights(const std::string& name, std::int64_t first, std::span<Bf16> out) const {
  const Place& place = find(name);
  if (!ends_with(name, ".wkv.weight")) {
    std::vector<std::uint8_t> bytes(out.size() * 2);
    place.file->read(*place.tensor, static_cast<std::uint64_t>(first) * 2, bytes);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i].bits = static_cast<std::uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
    }
    return;
  }
  const auto k = static_cast<std::int64_t>(place.tensor->shape.at(1));
  const std::int64_t blocks = (k + kWkvBlock - 1) / kWkvBlock;
  const Place& scale_place = find(name.substr(0, name.size() - std::string_view("weight").size()) + "scale");
  std::vector<std::uint8_t> line;
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(blocks));
  std::int64_t scale_row = -1;
  for (std::size_t done = 0; done < out.size();) {  // row by row of the matrix: bounded memory
    const std::int64_t element = first + static_cast<std::int64_t>(done);
    const std::int64_t column = element % k;
    const auto count = std::min<std::size_t>(static_cast<std::size_t>(k - column), out.size() - done);
    line.resize(count);
    place.file->read(*place.tensor, static_cast<std::uint64_t>(element), line);
    if (const std::int64_t row = element / k / kWkvBlock; row != scale_row) {
      scale_place.file->read(*scale_place.tensor, static_cast<std::uint64_t>(row * blocks), scales);
      scale_row = row;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto block = static_cast<std::size_t>(column + static_cast<std::int64_t>(i)) / kWkvBlock;
      out[done + i] = to_bf16(engram::e4m3_to_float(line[i]) * engram::ue8m0_to_float(scales[block]));
    }
    done += count;
  }
}

const std::string& Checkpoint::file_of(const std::string& tensor) const { return find(tensor).file->path(); }

}  // namespace eb::rank
