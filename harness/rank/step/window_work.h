// Slots of the lookup alone (workload.kind lookup), and of the bare row gather that gives BW_effective. A step is a
// window: each table in turn is looked up `launches` times, every launch with ids of its own, between two events.
// Nothing else runs on the rank: ids are hashed before the first window.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "harness/rank/step/slot_work.h"
#include "harness/rank/step/step_program.h"

namespace eb::rank {

inline constexpr std::int64_t kMostWindowLaunches = 4096;
inline constexpr std::int64_t kWindowNs = 200'000;  // a table's window is at least this long
inline constexpr std::int64_t kLeastTicks = 10;     // a window of fewer clock ticks is an error
inline constexpr std::int64_t kMostSingles = 32;    // lone launches of a slot, for launch_latency_us

class WindowWork final : public SlotWork {
 public:
  explicit WindowWork(SlotShared& shared) : shared_(shared), backend_(shared.backend) {}

  [[nodiscard]] std::int64_t prepare(const control::RunSlot& slot, const plan::Scenario& arm, EventLog& log) override;
  [[nodiscard]] backend::EventId enqueue(std::int64_t index) override;
  void finish(const HostWork& host, SlotResult& result) override;

 private:
  struct Window {
    StepTokens tokens;
    std::int64_t absolute = 0;     // step of the workload
    std::int64_t first_id = 0;     // element of ids_
    std::int64_t first_order = 0;  // element of orders_
  };
  enum class Kernel { lookup, gather };

  [[nodiscard]] std::int64_t id_row() const noexcept {
    return std::int64_t{shared_.shape.tables} * shared_.shape.columns;
  }
  [[nodiscard]] replay::StepBatch batch(const plan::Scenario& arm, int replica, std::int64_t window,
                                        std::int64_t launch) const;
  void list_windows();
  // Ids of `launches` launches of every window, hashed on the device.
  void make_ids(const plan::Scenario& arm, std::vector<Window>& windows, std::int64_t launches);
  void sort_ids();
  void make_room(std::int64_t tokens);
  [[nodiscard]] std::int64_t find_launches();
  [[nodiscard]] std::int64_t shortest_window(const Window& window, std::int64_t launches);
  [[nodiscard]] kernels::LookupArgs args(const Window& window, std::int64_t launch, int table) const;
  void launch(const Window& window, std::int64_t launch, int table);
  void before_windows();
  void count(const Window& window, int table);
  void check_lengths(const SlotResult& result);
  [[nodiscard]] CheckFacts check(std::vector<std::int32_t> ids);
  [[nodiscard]] int layer_of(int table) const { return shared_.geometry.layers[static_cast<std::size_t>(table)].layer; }

  SlotShared& shared_;
  backend::Backend& backend_;
  BufferPtr hash_layers_;
  std::int64_t room_tokens_ = -1;
  std::vector<BufferPtr> staging_;  // [tables] of [lookup tokens][part][dim] BF16
  std::vector<BufferPtr> order_;    // [tables] of [lookup tokens * part]: prefetch.order table
  BufferPtr sums_;                  // [lookup tokens * part] uint32: the bare gather
  // Launches of a window by kernel, tokens, grid cap and order: found once.
  std::map<std::tuple<Kernel, std::int64_t, std::int64_t, plan::Order>, std::int64_t> known_launches_;
  // Of the running slot.
  control::RunSlot slot_;
  plan::Scenario arm_;
  EventLog* log_ = nullptr;
  Kernel kernel_ = Kernel::lookup;
  bool reads_ = true;
  backend::StreamId stream_ = 0;
  const ControlGather* control_ = nullptr;
  Injection injection_;
  std::vector<Window> windows_;
  std::int64_t launches_ = 0;  // timed ones of a table in a window
  std::int64_t singles_ = 0;   // windows that have a lone launch ahead of them, with ids behind the timed ones
  BufferPtr ids_;              // [windows][launches][lookup tokens][tables][columns]
  BufferPtr orders_;           // gather with prefetch.order table: [windows][launches][tables][rows]
  std::int64_t last_grid_ = 0;
  StepCounts counts_;
  SlotTotals totals_;
  WindowFacts facts_;
};

}  // namespace eb::rank
