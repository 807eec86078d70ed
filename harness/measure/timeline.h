// What the events of one rank say about its steps: when each lookup was ready, ran and was waited for, and when the
// rank reached and left every collective. Times in ns on the host's time base. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "harness/rank/step/events.h"

namespace eb::measure {

inline constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::min();

// One lookup of the prefetch stream and the wait of its consumer.
struct LookupTimes {
  int layer = -1;
  std::int64_t inputs_ready_ns = kNoTime;  // ids (after any exchange), a free staging buffer, and the host's submission
  std::int64_t release_ns = kNoTime;       // at_consume only
  std::int64_t ready_ns = kNoTime;         // r = max of the two
  std::int64_t start_ns = kNoTime;         // s
  std::int64_t done_ns = kNoTime;          // f
  std::int64_t arrival_ns = kNoTime;       // c: the main stream reaches its wait
  std::int64_t resumed_ns = kNoTime;
  std::int64_t next_enqueued_ns = kNoTime;  // host time at which the main stream's next kernel was enqueued
  std::int64_t previous_done_ns = kNoTime;  // f of the lookup before it in the FIFO; kNoTime: none known
  // Set by who knows the batch: launches between s and f (a window has several), and stored rows of one launch.
  std::int64_t launches = 1;
  std::int64_t rows = 0;

  [[nodiscard]] bool complete() const noexcept;
  [[nodiscard]] std::int64_t queue_ns() const noexcept { return start_ns - ready_ns; }  // q
  [[nodiscard]] std::int64_t length_ns() const noexcept { return done_ns - start_ns; }  // L
  [[nodiscard]] std::int64_t exposed_ns() const noexcept {                              // E
    return done_ns > arrival_ns ? done_ns - arrival_ns : 0;
  }
  // s - max(r, f of the previous lookup): what the FIFO alone does not explain. Needs previous_done_ns.
  [[nodiscard]] std::int64_t fifo_residual_ns() const noexcept;
};

// The exposed wait [c, f] cut into its causes, in this order; the parts add up to it.
struct ExposedWait {
  std::int64_t host_late_ns = 0;    // the main stream's next kernel was not enqueued yet
  std::int64_t peer_late_ns = 0;    // ... was, but it is a collective that a peer could not have joined yet either
  std::int64_t other_ns = 0;        // ... the lookup's own inputs were not there yet
  std::int64_t recoverable_ns = 0;  // the rest: an earlier lookup would have given it back
};

// `peer_free_ns`: when the last other member of the next collective would have reached it without waiting for its own
// lookup: max over them of main_free_ns(); kNoTime where the next kernel is no collective.
[[nodiscard]] ExposedWait split_wait(const LookupTimes& lookup, std::int64_t peer_free_ns) noexcept;
// When the main stream could go on at the earliest, were the lookup done: max(c, next kernel enqueued).
[[nodiscard]] std::int64_t main_free_ns(const LookupTimes& lookup) noexcept;

enum class Collective : std::uint8_t { ids, rows, heads, wkv, expert };
inline constexpr int kCollectives = 5;

struct CollectiveTimes {
  Collective object{};
  int layer = -1;
  std::int64_t arrival_ns = kNoTime;
  std::int64_t done_ns = kNoTime;
};

struct LayerTimes {  // a backbone layer
  int layer = -1;
  std::int64_t start_ns = kNoTime;
  std::int64_t done_ns = kNoTime;
};

struct GateTimes {  // wkv and gate of one Engram layer
  int layer = -1;
  std::int64_t wkv_start_ns = kNoTime;
  std::int64_t wkv_done_ns = kNoTime;
  std::int64_t gate_done_ns = kNoTime;
};

// A stretch of the rank's stream: windows of the bare gather, or a lone launch.
struct Span {
  int layer = -1;
  std::int64_t start_ns = kNoTime;
  std::int64_t done_ns = kNoTime;
  std::int64_t launches = 1;
  std::int64_t rows = 0;
};

struct RankStep {
  std::uint32_t step = 0;
  std::uint16_t slot = 0;
  std::int64_t start_ns = kNoTime;
  std::int64_t ids_ready_ns = kNoTime;
  std::int64_t done_ns = kNoTime;
  std::int64_t control_start_ns = kNoTime;  // negative control
  std::int64_t control_done_ns = kNoTime;
  std::vector<LookupTimes> lookups;  // in the order of their layers
  std::vector<Span> singles;         // lone launches of the lookup, one a layer
  std::vector<Span> bare;            // BW_effective's row gather, one a layer; such a step has no start and no end
  std::vector<CollectiveTimes> collectives;
  std::vector<LayerTimes> backbone;
  std::vector<GateTimes> gates;
};

// Steps of one rank and slot, ascending. `fifo`: one prefetch stream, so that a lookup follows the one before it, over
// steps too. Errors: Error(failure) naming rank, slot and step for a step (other than of the bare gather) without its
// start or end, for an event twice, a kind that is not known, or an interval that ends before it begins.
[[nodiscard]] std::vector<RankStep> build_timeline(std::span<const rank::EventRecord> events, bool fifo, int rank);

}  // namespace eb::measure
