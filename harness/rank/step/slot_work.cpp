#include "harness/rank/step/slot_work.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/base/error.h"
#include "harness/rank/step/step_check.h"

namespace eb::rank {
namespace {

bool same_tokens(const plan::TokenSpec& a, const plan::TokenSpec& b) {
  return a.kind == b.kind && a.file == b.file && a.map == b.map && a.constant == b.constant &&
         a.zipf_exponent == b.zipf_exponent && a.repeat_probability == b.repeat_probability;
}

}  // namespace

SlotShared::SlotShared(const StepRunnerInput& in)
    : input(in),
      backend(*in.backend),
      geometry(*in.geometry),
      shape(make_shape(*in.scenario, *in.layout, *in.geometry, in.rank)),
      main(backend.create_stream("main")) {
  if (!shape.stub && input.tables.size() != geometry.layers.size())
    fail(Exit::failure, "{} tables mapped for {} Engram layers", input.tables.size(), geometry.layers.size());
}

void SlotShared::use_tokens(const plan::Scenario& arm) {
  if (token_spec_ && same_tokens(*token_spec_, arm.workload.tokens)) return;
  tokens = replay::make_token_model(arm.workload.tokens, geometry.model);
  pad_id = replay::read_token_map(arm.workload.tokens.map, geometry.model).pad_compressed();
  token_spec_ = arm.workload.tokens;
}

void SlotShared::use_streams(std::size_t count, bool sorts) {
  while (prefetch.size() < count) {
    prefetch.push_back(backend.create_stream(fmt::format("prefetch.{}", prefetch.size())));
  }
  if (sorts && !sort) sort = backend.create_stream("sort");
}

const ControlGather* SlotShared::control_for(const control::RunSlot& slot, std::int64_t most) {
  if (!slot.control || shape.stub || most == 0) return nullptr;
  if (!control_ || control_->tokens() < most)
    control_.emplace(backend, shape, geometry, most, input.scenario->seed, main);
  return &*control_;
}

std::vector<Reuse> SlotShared::reuse_of(const control::RunSlot& slot, std::span<const std::int32_t> last_ids,
                                        const std::function<void(const Visit&)>& all) {
  std::vector<Reuse> list;
  if (shape.stub) return list;
  const engram::Shard& shard = input.layout->ranks[static_cast<std::size_t>(input.rank)].shard;
  for (int table = 0; table < shape.tables; ++table) {
    list.push_back(count_reuse(geometry, shard, input.scenario->storage.layout, last_ids, table));
  }
  const int node = backend.device().numa_node;
  if (!slot.timed || slot.bare || input.host_tables == nullptr || node < 0 || pages_hidden_) return list;
  if (!locality_) {
    locality_.emplace(geometry, shard, plan::make_backing_layout(geometry, shard, input.scenario->storage),
                      input.host_tables, node);
  }
  try {
    all([&](const replay::StepBatch& batch) {
      locality_->add(reference_ids(geometry, batch, pad_id));
      if (input.progress != nullptr) input.progress->ticks.fetch_add(1, std::memory_order_relaxed);  // the rank lives
    });
    const std::vector<RowLocality> found = locality_->take();
    for (std::size_t table = 0; table < found.size(); ++table) list[table].locality = found[table];
  } catch (const Error&) {
    pages_hidden_ = true;  // move_pages is refused here; the snapshots give the reason
  }
  return list;
}

// Streams and units of a GPU are no threads of this machine; the rank's own is.
int SlotShared::threads(std::size_t streams) const {
  const backend::DeviceInfo& device = backend.device();
  return device.units_are_threads ? 1 + static_cast<int>(streams) + device.units : 1;
}

}  // namespace eb::rank
