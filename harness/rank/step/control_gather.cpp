#include "harness/rank/step/control_gather.h"

#include <algorithm>
#include <vector>

namespace eb::rank {

namespace {

constexpr std::int64_t kTableBytes = std::int64_t{64} << 20;
constexpr std::int64_t kIdLists = 4;
constexpr std::uint8_t kOneE4m3 = 0x38;  // 1.0; as a scale byte a small power of two; no NaN

}  // namespace

ControlGather::ControlGather(backend::Backend& backend, const StepShape& shape, const engram::Geometry& geometry,
                             std::int64_t tokens, std::uint64_t seed, backend::StreamId stream)
    : backend_(backend), heads_(shape.group_heads), tokens_(tokens) {
  const engram::Model& model = geometry.model;
  const std::int64_t weight_bytes = geometry.row_weight_bytes();
  const std::int64_t scale_bytes = geometry.row_scale_bytes();
  std::int64_t most = 1;
  for (const engram::LayerGeometry& layer : geometry.layers) most = std::max(most, layer.rows);
  const std::int64_t rows = std::clamp(kTableBytes / (weight_bytes + scale_bytes), std::int64_t{1}, most);
  rows_ = backend.allocate(static_cast<std::size_t>(rows * (weight_bytes + scale_bytes)), backend::MemoryKind::device,
                           "rows of the negative control");
  // Zero pages that were never written are all one page.
  backend.fill(stream, {backend::OpKind::fill}, rows_->data(), kOneE4m3, rows_->size());
  table_.weights = rows_->data();
  table_.scales = scale_bytes == 0 ? nullptr : rows_->data() + rows * weight_bytes;
  table_.weight_stride = weight_bytes;
  table_.scale_stride = scale_bytes;
  table_.rows = rows;
  table_.dim = model.dim;
  table_.block = model.block;
  table_.format = scale_bytes == 0 ? kernels::RowFormat::bf16 : kernels::RowFormat::e4m3_ue8m0;
  table_.in_device_memory = true;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kIdLists * tokens * heads_));
  std::uint64_t state = seed ^ 0x636f6e74726f6cULL;
  for (std::int32_t& id : ids) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    id = static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(rows));
  }
  ids_ =
      backend.allocate(ids.size() * sizeof(std::int32_t), backend::MemoryKind::device, "ids of the negative control");
  upload(backend, stream, ids_->data(), std::as_bytes(std::span(ids)));
  out_ = backend.allocate(static_cast<std::size_t>(tokens * heads_ * model.dim) * sizeof(Bf16),
                          backend::MemoryKind::device, "output of the negative control");
}

void ControlGather::enqueue(backend::StreamId stream, EventLog& log, std::int64_t index, std::int64_t tokens) const {
  if (tokens == 0) return;
  kernels::LookupArgs args;
  args.table = table_;
  args.ids = ids_->as<std::int32_t>() + index % kIdLists * tokens_ * heads_;
  args.id_token_stride = heads_;
  args.tokens = tokens;
  args.columns = heads_;
  args.heads = heads_;
  args.staging = out_->as<Bf16>();
  log.mark(stream, EventKind::control_start);
  static_cast<void>(backend_.lookup(stream, {backend::OpKind::control_gather}, args, backend_.device().units));
  log.mark(stream, EventKind::control_done);
}

}  // namespace eb::rank
