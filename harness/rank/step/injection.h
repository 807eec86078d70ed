// Planted effects: real extra work in one stage of the step, as a share of what the stage took in slots without it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "harness/rank/step/events.h"

namespace eb::rank {

// Extra work of a slot, in ns, by backbone or Engram layer.
struct Injection {
  std::map<int, std::int64_t> lookup_ns;
  std::map<int, std::int64_t> front_ns;   // backbone layers in front of the last consumer
  std::map<int, std::int64_t> gather_ns;  // behind the arrival at the TP gather
};

// What the stages take without extra work: the last slot of this rank that had none. Not thread-safe.
class StageTimes {
 public:
  // Device times of one slot's events. Lookup and backbone: median over its steps; gather: the least, since a rank that
  // comes early also waits for its peers.
  void learn(std::span<const EventRecord> events);

  // `stage`: lookup, front or gather. `last_consumer`: the last Engram layer. Errors: Error(usage) where nothing was
  // learnt yet, or the stage does not exist here.
  [[nodiscard]] Injection injection(const std::string& stage, double percent, int last_consumer) const;

 private:
  std::map<int, std::int64_t> lookup_ns_;
  std::map<int, std::int64_t> backbone_ns_;
  std::map<int, std::int64_t> gather_ns_;
};

}  // namespace eb::rank
