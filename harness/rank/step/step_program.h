// Enqueues steps: the order of work and waits on the main stream and the prefetch stream(s), written once for every
// table mode and backend.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/rank/step/control_gather.h"
#include "harness/rank/step/injection.h"
#include "harness/rank/step/step_buffers.h"
#include "harness/rank/step/step_events.h"
#include "harness/rank/step/step_shape.h"
#include "kernels/lookup.h"

namespace eb::rank {

// A planted fault that this rank carries out itself, from step `first_step` of every slot on, on the first table.
enum class LookupFault { none, skip, late };

struct StepOptions {
  plan::Submit submit = plan::Submit::early;
  plan::Streams streams = plan::Streams::fifo;
  plan::Order order = plan::Order::token;
  std::int64_t grid_cap = 1;
  bool graphs = false;  // prefetch.graph piecewise
  LookupFault fault = LookupFault::none;
  std::int64_t fault_step = 0;
  Injection injection;
  const ControlGather* control = nullptr;  // null: no negative control
};

// What the steps of a slot did, by count; filled while they are enqueued.
struct LookupCounts {
  std::int64_t rows = 0;  // with padded heads and padding tokens
  std::int64_t rows_per_step_max = 0;
  std::int64_t tiles_max = 0;
  std::int64_t grid_max = 0;
  kernels::LookupArgs largest;  // the lookup with the most rows
};
struct CollectiveCounts {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // that the group's other members got from this rank
};
struct StepCounts {
  std::vector<LookupCounts> lookups;                                                  // [tables]
  std::map<std::tuple<std::string, std::string, int>, CollectiveCounts> collectives;  // object, group, layer
};

// Device copies of sampled tokens around a layer's gate: [tables][samples].
struct HiddenCapture {
  std::vector<std::int64_t> tokens;  // places in the own window
  std::vector<BufferPtr> before;     // [samples][copies][hidden]
  std::vector<BufferPtr> kv;         // [samples][kv_width]
  std::vector<BufferPtr> after;      // as before
};

struct Communicators {
  std::unique_ptr<backend::Communicator> tp;   // null where the group is the rank alone
  std::unique_ptr<backend::Communicator> edp;  // null unless dp_sharded
  std::unique_ptr<backend::Communicator> ep;   // null where ep is 1
};

// What a step works on. All references outlive the program.
struct StepParts {
  backend::Backend& backend;
  const StepShape& shape;
  const engram::Geometry& geometry;
  std::int32_t pad_id;  // compressed
  const std::vector<kernels::TableView>& tables;
  const StepBuffers& buffers;
  const StepWeights& weights;
  const Communicators& groups;
  backend::StreamId main;
  const std::vector<backend::StreamId>& prefetch;  // one (fifo) or one a table (per_layer)
  std::optional<backend::StreamId> sort{};         // where rows are sorted: of prefetch.order table
};

struct StepInput {
  std::int64_t index = 0;     // within the slot
  std::int64_t absolute = 0;  // index into the workload
  std::uint32_t shape = 0;    // equal numbers: equal token counts
  StepTokens tokens;
  SlotBatches::Step batch;
  bool poison = false;               // 0xFF in staging and every gathered buffer first
  HiddenCapture* capture = nullptr;  // null: nothing is captured
};

// One slot's steps. Not thread-safe: the rank's host thread enqueues everything.
class StepProgram {
 public:
  StepProgram(const StepParts& parts, const StepOptions& options, EventLog& log);

  // Enqueues one step and returns its step_done event. The caller keeps at most kInFlight steps in flight.
  backend::EventId enqueue(const StepInput& step);

  // Ids that the lookup of step `index` reads, and how many tokens have them: [tokens.lookup][tables][columns].
  [[nodiscard]] const std::int32_t* lookup_ids(std::int64_t index) const noexcept;
  // The rows that wkv reads, [window][columns][dim] (staging itself on a single rank).
  [[nodiscard]] const Bf16* gathered_rows(int table) const noexcept;
  // [window][columns][kWitness] of a poisoned step, or null where gathered_rows() is no staging.
  [[nodiscard]] const Bf16* witness(int table) const noexcept;
  [[nodiscard]] const StepCounts& counts() const noexcept { return counts_; }

 private:
  void start(const StepInput& step);
  void poison(const StepInput& step);
  void hash(const StepInput& step);
  void sort_ahead(const StepInput& step);
  [[nodiscard]] kernels::LookupArgs lookup_args(const StepInput& step, int table) const;
  void submit_lookup(const StepInput& step, int table, backend::EventId after);
  void consume(const StepInput& step, int table);
  void keep_witness(const StepInput& step, int table);
  void bring_rows(const StepInput& step, int table);
  void project(const StepInput& step, int table);
  void apply_gate(const StepInput& step, int table);
  void capture(const StepInput& step, int table, const std::vector<BufferPtr>& hidden);
  void backbone(const StepInput& step, int layer);
  // Work of the main stream that a graph may replay. Open segments go on; anything that others wait for closes first.
  enum class Piece { wkv, wkv_gathered, gate, backbone, after_exchange };
  void open_segment(const StepInput& step, int layer, Piece piece);
  void close_segment();
  void all_gather(backend::Communicator& group, const char* group_name, const char* object, backend::Op op,
                  EventKind start, const void* send, void* recv, std::int64_t bytes);
  void inject(backend::StreamId stream, const std::map<int, std::int64_t>& extra, int layer);
  [[nodiscard]] bool faulty(const StepInput& step, int table, LookupFault kind) const noexcept;
  [[nodiscard]] int layer_of(int table) const { return parts_.geometry.layers[static_cast<std::size_t>(table)].layer; }
  [[nodiscard]] backend::StreamId prefetch_stream(int table) const;

  StepParts parts_;
  StepOptions options_;
  EventLog& log_;
  StepCounts counts_;
  backend::EventId ids_ready_ = 0;
  std::vector<backend::EventId> lookup_done_;   // [tables], of the running step
  std::vector<backend::EventId> sorted_;        // [tables], of the running step
  std::vector<backend::EventId> staging_free_;  // [tables], after staging's last reader in the step before
  bool first_step_ = true;
  bool segment_open_ = false;
  std::vector<backend::EventId> late_;  // lookups that nobody waited for
};

}  // namespace eb::rank
