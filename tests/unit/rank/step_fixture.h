// A small run of the step pipeline inside one process: one thread a rank, tables in memory, a backend of either kind.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "harness/backend/fake/fake.h"
#include "harness/base/error.h"
#include "harness/control/messages.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/rank/step/step_runner.h"

namespace eb::rank::test {

enum class Device { cpu, fake };

struct StepRun {
  plan::Scenario scenario;
  Device device = Device::cpu;
  bool instrument = true;
  std::vector<control::RunSlot> slots;
  std::vector<plan::Scenario> arms;  // one a slot; empty: the scenario itself in every slot
  backend::fake::Script script;      // fake only
};

struct RankOutcome {
  std::vector<SlotResult> slots;
  std::vector<nlohmann::json> facts;  // one a slot
  Exit exit = Exit::ok;
  std::string error;
  std::vector<backend::fake::OperationNode> operations;  // fake only, all slots
};

[[nodiscard]] std::vector<RankOutcome> run_ranks(const StepRun& run);

// Preset tiny with `heads` heads, `tables` Engram layers (0, 2, ...), over a backbone of small layers.
[[nodiscard]] plan::Scenario tiny(int tp, int dp, plan::TableMode mode, int heads = 8, int tables = 1);
// Two n-gram sizes, two Engram layers (1 and 3), E4M3 rows of 64 bytes from the prime search.
[[nodiscard]] plan::Scenario two_layers(int tp, int dp, plan::TableMode mode);
[[nodiscard]] plan::Batch batch(std::vector<std::int64_t> prefill, std::int64_t decode, int replica = -1);
// A slot that checks ids, rows and hidden states of its last step.
[[nodiscard]] control::RunSlot checked_slot(std::int64_t steps, std::int64_t first_step = 0);
[[nodiscard]] control::RunSlot timed_slot(std::int64_t steps, std::int64_t first_step = 0);

// Device time of the events of `kind` at `layer`, step after step.
[[nodiscard]] std::vector<std::int64_t> times_of(const SlotResult& slot, EventKind kind, int layer = -1);
// Fails the test where a rank ended with an error.
void expect_ok(const std::vector<RankOutcome>& ranks);

}  // namespace eb::rank::test
