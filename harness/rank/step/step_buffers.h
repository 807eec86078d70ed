// What a rank's steps read and write: device buffers sized for a slot, weights, the slot's token contexts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/engram/geometry.h"
#include "harness/rank/step/step_runner.h"
#include "harness/rank/step/step_shape.h"
#include "harness/replay/batch_source.h"

namespace eb::rank {

// Steps in flight: the host waits for step k - kInFlight before it enqueues step k, and each has its own ids.
inline constexpr int kInFlight = 2;
// Initial hidden states lie in a pool this many tokens longer than a step; a step starts at its own offset in it, so
// that what an earlier step left behind is never what this one would have written.
inline constexpr std::int64_t kPoolSlack = 64;

// Elements of each row that a checked step keeps from the moment of consumption, where wkv reads staging itself: a
// lookup that comes later would put everything right again before the check looks.
inline constexpr int kWitness = 8;

// Largest token counts of the steps that the buffers are for.
struct StepLimits {
  StepTokens most;
  void cover(const StepTokens& tokens) noexcept;
  [[nodiscard]] bool fits_in(const StepLimits& other) const noexcept;
};

// Copies host memory to the device and waits; `stream` may be any stream.
void upload(backend::Backend& backend, backend::StreamId stream, std::byte* dst, std::span<const std::byte> src);
// Copies device memory to the host and waits for all streams.
[[nodiscard]] std::vector<std::byte> download(backend::Backend& backend, backend::StreamId stream, const std::byte* src,
                                              std::size_t bytes);

using BufferPtr = std::unique_ptr<backend::Buffer>;

struct TableBuffers {
  BufferPtr staging;  // [lookup tokens][part][dim] BF16
  BufferPtr order;    // [lookup tokens * part] int32: prefetch.order = table
  BufferPtr rows;     // [window][columns][dim] BF16: what wkv reads; null where that is staging itself
  BufferPtr witness;  // [window][columns][kWitness] BF16, only without `rows`: what the consumer of a checked step saw
};

struct StepBuffers {
  StepBuffers(backend::Backend& backend, const StepShape& shape, const StepLimits& limits, std::uint64_t seed,
              backend::StreamId stream);

  StepLimits limits;
  std::array<BufferPtr, kInFlight> ids;            // [slot tokens][tables][columns] int32
  std::array<BufferPtr, kInFlight> ids_exchanged;  // [edp][slot tokens][tables][columns]; null without DP exchange
  std::array<BufferPtr, kInFlight> masked;         // [own tokens] uint8: a graph's copy, whose address stays
  std::vector<TableBuffers> tables;
  BufferPtr exchanged;    // [edp][lookup tokens][part][dim]; null without DP exchange
  BufferPtr group_rows;   // [own tokens][group heads][dim]; null without DP exchange or TP
  BufferPtr gathered;     // [tp][own tokens][group heads][dim]; null without TP
  BufferPtr kv_own;       // [own tokens][kv_part]; null without TP or with SP
  BufferPtr kv_gathered;  // [tp][own tokens][kv_part]; as above
  BufferPtr kv;           // [window][kv_width]
  BufferPtr hidden;       // [padded tokens][copies][hidden]
  BufferPtr hidden_pool;  // [padded tokens + kPoolSlack][copies][hidden], constant
  BufferPtr inner;        // [padded tokens][backbone_n]
  BufferPtr expert_send;  // [ep][message]; null without EP
  BufferPtr expert_recv;

  // First pool token of step `step`.
  [[nodiscard]] static std::int64_t pool_offset(std::int64_t step) noexcept { return step * 17 % kPoolSlack; }
};

// [tables] of kernels::HashLayer.
[[nodiscard]] BufferPtr make_hash_layers(backend::Backend& backend, const engram::Geometry& geometry,
                                         backend::StreamId stream);
// Hash of all tables and columns; the caller adds tokens and ids.
[[nodiscard]] kernels::HashArgs hash_args(const engram::Geometry& geometry, const BufferPtr& hash_layers,
                                          std::int32_t pad_id);

struct StepWeights {
  StepWeights(backend::Backend& backend, const StepShape& shape, const engram::Geometry& geometry,
              const RowReference& reference, std::uint64_t seed, backend::StreamId stream);

  std::vector<std::unique_ptr<backend::Matrix>> wkv;  // [tables] of [kv_part][row_width]
  std::vector<BufferPtr> q;                           // [tables] of [copies][hidden]
  std::vector<BufferPtr> k;
  std::vector<std::unique_ptr<backend::Matrix>> up;    // [backbone layers] of [backbone_n][hidden]
  std::vector<std::unique_ptr<backend::Matrix>> down;  // [backbone layers] of [hidden][backbone_n]
  BufferPtr hash_layers;                               // [tables] of kernels::HashLayer
};

// Token contexts of all steps of a slot, built and uploaded before its first step.
class SlotBatches {
 public:
  SlotBatches(backend::Backend& backend, backend::StreamId stream, const replay::BatchSource& source,
              std::int64_t first_step, std::int64_t steps);

  struct Step {
    const std::int32_t* context = nullptr;
    const std::int32_t* position = nullptr;
    const std::uint8_t* masked = nullptr;
    std::int64_t tokens = 0;
  };
  [[nodiscard]] Step step(std::int64_t index) const;  // index within the slot
  [[nodiscard]] const replay::StepBatch& last() const noexcept { return last_; }

 private:
  struct Place {
    std::size_t context = 0;
    std::size_t token = 0;
    std::int64_t tokens = 0;
  };
  std::vector<Place> places_;
  BufferPtr context_;
  BufferPtr position_;
  BufferPtr masked_;
  replay::StepBatch last_;
};

// Names of weights, as in the checkpoint where they exist there.
[[nodiscard]] std::string weight_name(int layer, const char* part);

}  // namespace eb::rank
