#include "harness/replay/batch_source.h"

#include <algorithm>
#include <set>
#include <utility>

#include "harness/engram/content.h"
#include "kernels/hash.h"

namespace eb::replay {

namespace {

using kernels::kLookBack;

enum class StreamKind : std::uint64_t { prefill = 1, decode = 2 };

// Name of the stream of sequence `index`: no two of a run are equal but by a 64-bit collision.
std::uint64_t stream_name(StreamKind kind, int replica, std::int64_t step, std::size_t index) noexcept {
  using engram::splitmix64;
  const std::uint64_t who = splitmix64(static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint32_t>(replica));
  return splitmix64(splitmix64(who ^ static_cast<std::uint64_t>(step)) ^ index);
}

// Steps before `step` in which sequence `index` decoded a token: entries of the cycle whose batch has it.
std::int64_t decoded_before(const std::vector<plan::Batch>& cycle, std::int64_t step, std::int64_t index) {
  const auto length = static_cast<std::int64_t>(cycle.size());
  const auto in_cycle = [&](std::int64_t entries) {
    return std::count_if(cycle.begin(), cycle.begin() + entries,
                         [&](const plan::Batch& batch) { return batch.decode > index; });
  };
  return step / length * in_cycle(length) + in_cycle(step % length);
}

}  // namespace

BatchSource::BatchSource(const plan::Scenario& scenario, std::shared_ptr<const TokenModel> model, int replica)
    : workload_(scenario.workload), model_(std::move(model)), seed_(scenario.seed), replica_(replica) {}

StepBatch BatchSource::step(std::int64_t step) const {
  StepBatch result;
  const std::vector<plan::Batch> cycle = workload_.batches_of(replica_);
  if (cycle.empty()) return result;  // an idle replica
  const plan::Batch& batch = cycle[static_cast<std::size_t>(step) % cycle.size()];
  const std::int64_t place = workload_.index_state == plan::IndexState::repeat ? 0 : step;

  // Room for a look-back and the tokens of one chunk; returns where the look-back begins.
  const auto add_chunk = [&](std::int64_t tokens) {
    const std::size_t begin = result.context.size();
    result.context.resize(begin + kLookBack + static_cast<std::size_t>(tokens));
    for (std::int64_t t = 0; t < tokens; ++t) {
      result.position.push_back(static_cast<std::int32_t>(begin) + kLookBack + static_cast<std::int32_t>(t));
    }
    return begin;
  };

  for (std::size_t i = 0; i < batch.prefill.size(); ++i) {
    const std::size_t begin = add_chunk(batch.prefill[i]);
    const auto chunk = std::span(result.context).subspan(begin);
    std::ranges::fill(chunk.first(kLookBack), engram::kDeadToken);  // before the request's start
    model_->fill(seed_, stream_name(StreamKind::prefill, replica_, place, i), 0, chunk.subspan(kLookBack));
  }

  // Sequences between two decode counts of the cycle have been decoded equally often.
  std::set<std::int64_t> bounds;
  for (const plan::Batch& entry : cycle) bounds.insert(entry.decode);
  std::int64_t decoded = 0;
  for (std::int64_t i = 0; i < batch.decode; ++i) {
    if (i == 0 || bounds.contains(i)) decoded = decoded_before(cycle, place, i);
    const std::size_t begin = add_chunk(1);
    // The stream's first tokens are the prompt's end: a decoded token always has its whole look-back.
    model_->fill(seed_, stream_name(StreamKind::decode, replica_, 0, static_cast<std::size_t>(i)), decoded,
                 std::span(result.context).subspan(begin));
  }

  result.masked.resize(result.position.size());
  for (std::size_t t = 0; t < result.position.size(); ++t) {
    result.masked[t] = result.context[static_cast<std::size_t>(result.position[t])] == engram::kDeadToken ? 1 : 0;
  }
  return result;
}

}  // namespace eb::replay
