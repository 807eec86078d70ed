#include "harness/rank/tables/row_reference.h"

#include "harness/engram/content.h"
#include "harness/rank/tables/checkpoint.h"

namespace eb::rank {

namespace {

class SyntheticReference : public RowReference {
 public:
  SyntheticReference(const engram::Geometry& geometry, std::uint64_t seed) : geometry_(geometry), seed_(seed) {}
  void row(std::size_t layer_index, std::int64_t row, std::span<std::uint8_t> weights,
           std::span<std::uint8_t> scales) const override {
    engram::synthetic_row(geometry_, seed_, geometry_.layers.at(layer_index).layer, row, weights, scales);
  }
  void weights(const std::string& name, std::int64_t fan_in, std::int64_t first, std::span<Bf16> out) const override {
    engram::synthetic_weights(name, seed_, fan_in, first, out);
  }

 private:
  const engram::Geometry& geometry_;
  std::uint64_t seed_;
};

class CheckpointReference : public RowReference {
 public:
  CheckpointReference(const engram::Geometry& geometry, const std::string& folder) : checkpoint_(folder, geometry) {}
  void row(std::size_t layer_index, std::int64_t row, std::span<std::uint8_t> weights,
           std::span<std::uint8_t> scales) const override {
    checkpoint_.rows(layer_index, row, 1, weights, scales);
  }
  void weights(const std::string& name, std::int64_t, std::int64_t first, std::span<Bf16> out) const override {
    checkpoint_.weights(name, first, out);
  }

 private:
  Checkpoint checkpoint_;
};

}  // namespace

std::unique_ptr<RowReference> make_synthetic_reference(const engram::Geometry& geometry, std::uint64_t seed) {
  return std::make_unique<SyntheticReference>(geometry, seed);
}

std::unique_ptr<RowReference> make_checkpoint_reference(const engram::Geometry& geometry, const std::string& folder) {
  return std::make_unique<CheckpointReference>(geometry, folder);
}

std::unique_ptr<RowReference> make_row_reference(const plan::Scenario& scenario, const engram::Geometry& geometry) {
  if (scenario.storage.checkpoint.empty()) return make_synthetic_reference(geometry, scenario.seed);
  return make_checkpoint_reference(geometry, scenario.storage.checkpoint);
}

}  // namespace eb::rank
