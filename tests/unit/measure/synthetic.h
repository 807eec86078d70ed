// Events of scripted steps, for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/rank/step/events.h"

namespace eb::measure {

class Script {
 public:
  explicit Script(std::uint16_t slot = 0) : slot_(slot) {}
  Script& step(std::uint32_t step) {
    step_ = step;
    return *this;
  }
  // Executed at `device_ns`, enqueued at `host_ns`.
  Script& at(rank::EventKind kind, int layer, std::int64_t device_ns, std::int64_t host_ns = 0) {
    rank::EventRecord event;
    event.step = step_;
    event.slot = slot_;
    event.kind = static_cast<std::uint16_t>(kind);
    event.layer = static_cast<std::int16_t>(layer);
    event.clock = static_cast<std::uint8_t>(rank::Clock::host);
    event.time_ns = host_ns;
    events.push_back(event);
    event.clock = static_cast<std::uint8_t>(rank::Clock::device);
    event.time_ns = device_ns;
    events.push_back(event);
    return *this;
  }
  std::vector<rank::EventRecord> events;

 private:
  std::uint16_t slot_;
  std::uint32_t step_ = 0;
};

// A step of one rank with layers 1 and 14 on a FIFO, begun at `base`; lookup 1 runs base+100 .. base+400, its consumer
// arrives at base+250 + `shift`.
inline void scripted_step(Script& script, std::uint32_t step, std::int64_t base, std::int64_t shift = 0) {
  using K = rank::EventKind;
  script.step(step)
      .at(K::step_start, -1, base, base - 50)
      .at(K::ids_ready, -1, base + 90, base - 40)
      .at(K::lookup_start, 1, base + 100, base - 30)
      .at(K::lookup_done, 1, base + 400, base - 29)
      .at(K::lookup_start, 14, base + 410, base - 28)
      .at(K::lookup_done, 14, base + 600, base - 27)
      .at(K::backbone_start, 0, base + 95, base - 26)
      .at(K::backbone_done, 0, base + 240, base - 25)
      .at(K::consumer_arrival, 1, base + 250 + shift, base - 24)
      .at(K::consumer_resumed, 1, base + 405 + shift, base - 23)
      .at(K::gather_start, 1, base + 420 + shift, base - 22)
      .at(K::gather_done, 1, base + 500 + shift, base - 21)
      .at(K::wkv_start, 1, base + 510 + shift, base - 20)
      .at(K::wkv_done, 1, base + 560 + shift, base - 19)
      .at(K::wkv_gather_start, 1, base + 561 + shift, base - 18)
      .at(K::wkv_gather_done, 1, base + 571 + shift, base - 17)
      .at(K::gate_done, 1, base + 600 + shift, base - 16)
      .at(K::backbone_start, 1, base + 610 + shift, base - 15)
      .at(K::backbone_done, 1, base + 700 + shift, base - 14)
      .at(K::consumer_arrival, 14, base + 710 + shift, base - 13)
      .at(K::consumer_resumed, 14, base + 712 + shift, base - 12)
      .at(K::gather_start, 14, base + 715 + shift, base - 11)
      .at(K::gather_done, 14, base + 725 + shift, base - 10)
      .at(K::wkv_start, 14, base + 730 + shift, base - 9)
      .at(K::wkv_done, 14, base + 750 + shift, base - 8)
      .at(K::gate_done, 14, base + 770 + shift, base - 7)
      .at(K::backbone_start, 14, base + 780 + shift, base - 6)
      .at(K::backbone_done, 14, base + 880 + shift, base - 5)
      .at(K::step_done, -1, base + 900 + shift, base - 4);
}

}  // namespace eb::measure
