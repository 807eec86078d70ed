// Where each rank is, in a page that the supervisor can read while the rank hangs: names the rank that stalls and the
// ranks that only wait for it.
#pragma once

#include <atomic>
#include <cstdint>

namespace eb::control {

struct alignas(64) RankProgress {
  std::atomic<std::uint32_t> stage{0};    // control::Stage + 1; 0 = starting
  std::atomic<std::uint32_t> step{0};     // steps finished in the running slot
  std::atomic<std::uint32_t> ticks{0};    // any progress at all
  std::atomic<std::uint32_t> waiting{0};  // > 0 while a stream waits for a peer in a collective
};

}  // namespace eb::control
