// What a step records, and the form it is stored in (events/rank-N.npy).
#pragma once

#include <cstdint>

namespace eb::rank {

// Values are part of the result format: append only.
enum class EventKind : std::uint16_t {
  step_start = 0,  // main stream, before the hash
  ids_ready = 1,   // ids hashed and, in dp_sharded, exchanged
  id_exchange_start = 2,
  id_exchange_done = 3,
  release = 4,           // recorded by the main stream at its consumer (at_consume)
  lookup_start = 5,      // s
  lookup_done = 6,       // f
  consumer_arrival = 7,  // c: the main stream reaches its wait
  consumer_resumed = 8,
  row_exchange_start = 9,
  row_exchange_done = 10,
  gather_start = 11,  // heads over TP
  gather_done = 12,
  wkv_start = 13,
  wkv_done = 14,
  wkv_gather_start = 15,
  wkv_gather_done = 16,
  gate_done = 17,
  backbone_start = 18,  // `layer` = backbone layer
  backbone_done = 19,
  expert_start = 20,
  expert_done = 21,
  step_done = 22,
  control_start = 23,  // negative control: a gather from a private buffer
  control_done = 24,
  launch_start = 25,  // workload.kind lookup: one lone launch on an idle stream
  launch_done = 26,
  bare_start = 27,  // the bare row gather of BW_effective
  bare_done = 28,
};
inline constexpr int kEventKinds = 29;
[[nodiscard]] const char* name(EventKind kind) noexcept;

enum class Clock : std::uint8_t { host = 0, device = 1 };  // host = when it was enqueued

// One record; the structured NumPy dtype is
// [('step','<u4'),('slot','<u2'),('kind','<u2'),('layer','<i2'),('clock','u1'),
// ('pad','u1'),('pad2','<u4'),('time_ns','<i8')].
struct EventRecord {
  std::uint32_t step = 0;
  std::uint16_t slot = 0;  // measurement slot of the run (result.json: slots)
  std::uint16_t kind = 0;
  std::int16_t layer = -1;
  std::uint8_t clock = 0;
  std::uint8_t pad = 0;
  std::uint32_t pad2 = 0;
  std::int64_t time_ns = 0;
};
static_assert(sizeof(EventRecord) == 24);

}  // namespace eb::rank
