// One rank process: a state machine over the supervisor's messages. Its parts are handed in, so that it is tested
// against a fake supervisor without threads, tables or a step pipeline.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "harness/backend/backend.h"
#include "harness/control/channel.h"
#include "harness/control/progress.h"
#include "harness/engram/geometry.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/rank/step/step_runner.h"
#include "harness/rank/tables/storage.h"

namespace eb::rank {

// What a rank knows once it has its Setup; the parts are built from it.
struct RankContext {
  plan::Scenario scenario;
  engram::Geometry geometry;
  plan::RunLayout layout;
  int rank = 0;
  int numa_node = -1;
  int device = -1;  // index among the backend's devices; -1: not stated
  bool instrument = true;
  backend::Arena arena;
  control::RankProgress* progress = nullptr;  // never null
};

// Runs slots: the step pipeline, or a test's.
class SlotRunner {
 public:
  virtual ~SlotRunner() = default;
  [[nodiscard]] virtual SlotResult run(const control::RunSlot& slot, const plan::Scenario& arm) = 0;
};

struct RankParts {
  std::function<std::unique_ptr<backend::Backend>(const RankContext&)> make_backend;
  std::function<std::unique_ptr<SlotRunner>(const RankContext&, backend::Backend&, const TableStorage&,
                                            const RowReference&)>
      make_runner;
  // JSON of a snapshot (docs/results.md, placement).
  std::function<std::string(const RankContext&, const TableStorage&, const std::string& label)> take_snapshot;
};

// Serves the supervisor until Stop (returns 0), a failure (reported, then its exit code) or the supervisor's end
// (returns 1). Single thread.
int run_rank(control::Channel& channel, const RankParts& parts);

// A planted fault that is due here: kills, hangs or throws. `where`: before_map, before_register, during_load.
void planted_fault(const plan::Fault& fault, int rank, const char* where);

}  // namespace eb::rank
