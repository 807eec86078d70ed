// What a slot works at, behind the one way of running a slot (step_runner.cpp): steps of a model (step_work.h) or
// windows of the lookup alone (window_work.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/rank/step/control_gather.h"
#include "harness/rank/step/injection.h"
#include "harness/rank/step/step_buffers.h"
#include "harness/rank/step/step_events.h"
#include "harness/rank/step/step_facts.h"
#include "harness/rank/step/step_runner.h"
#include "harness/rank/step/step_shape.h"
#include "harness/rank/tables/row_locality.h"
#include "harness/replay/batch_source.h"
#include "harness/replay/token_model.h"

namespace eb::rank {

// What all slots of a rank share, whatever they work at. Host thread only.
struct SlotShared {
  explicit SlotShared(const StepRunnerInput& in);

  // Token model and pad id of an arm; kept while arms agree.
  void use_tokens(const plan::Scenario& arm);
  // Prefetch streams 0 .. count - 1, and the one for sorting, made when they are first needed.
  void use_streams(std::size_t count, bool sorts);
  // The negative control for steps of up to `tokens` own tokens; null: the slot has none.
  [[nodiscard]] const ControlGather* control_for(const control::RunSlot& slot, std::int64_t tokens);
  // How often rows of the last step came again, and where the rows of all steps of a timed slot lie, by table; empty
  // for the stub. `all`: calls its argument with every batch whose rows the slot's lookups read. The ids are hashed
  // again, out of the same batches: those of the device are gone with the next step.
  using Visit = std::function<void(const replay::StepBatch&)>;
  [[nodiscard]] std::vector<Reuse> reuse_of(const control::RunSlot& slot, std::span<const std::int32_t> last_ids,
                                            const std::function<void(const Visit&)>& all);
  // Threads that want to run at once, `streams` streams beside the main one among them.
  [[nodiscard]] int threads(std::size_t streams) const;

  StepRunnerInput input;
  backend::Backend& backend;
  const engram::Geometry& geometry;
  StepShape shape;
  backend::StreamId main;
  std::vector<backend::StreamId> prefetch;
  std::optional<backend::StreamId> sort;
  StageTimes stage_times;
  std::shared_ptr<const replay::TokenModel> tokens;
  std::int32_t pad_id = 0;

 private:
  std::optional<plan::TokenSpec> token_spec_;
  std::optional<ControlGather> control_;
  std::optional<LocalityCounter> locality_;  // made when a timed slot first needs it
  bool pages_hidden_ = false;
};

// Device memory as values on the host; waits for all streams.
template <typename T>
[[nodiscard]] std::vector<T> download_values(backend::Backend& backend, backend::StreamId stream, const T* src,
                                             std::int64_t count) {
  const std::vector<std::byte> bytes =
      download(backend, stream, reinterpret_cast<const std::byte*>(src), static_cast<std::size_t>(count) * sizeof(T));
  std::vector<T> values(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class SlotWork {
 public:
  SlotWork() = default;
  virtual ~SlotWork() = default;
  SlotWork(const SlotWork&) = delete;
  SlotWork& operator=(const SlotWork&) = delete;

  // All that takes the host's time, before the first step. Returns how many steps this rank enqueues: slot.steps, or 0
  // where it stays idle. `log` outlives the slot.
  [[nodiscard]] virtual std::int64_t prepare(const control::RunSlot& slot, const plan::Scenario& arm,
                                             EventLog& log) = 0;
  // Enqueues step `index` of the slot and returns the event of its end. The caller keeps at most kInFlight in flight.
  [[nodiscard]] virtual backend::EventId enqueue(std::int64_t index) = 0;
  // After the slot, everything synchronised and result.events taken: checks what the last step left, fills the rest of
  // `result`. Errors: Error(bad_data) where a check fails.
  virtual void finish(const HostWork& host, SlotResult& result) = 0;
};

}  // namespace eb::rank
