// A lookup that did not run, or came too late, must be found, whatever was in staging before.
#include <gtest/gtest.h>

#include "tests/unit/rank/step_fixture.h"

namespace eb::rank::test {
namespace {

struct FaultCase {
  const char* kind;
  Device device;
  plan::TableMode mode;
  int tp;
  plan::Submit submit;
  plan::IndexState index_state;
};

std::vector<FaultCase> fault_cases() {
  std::vector<FaultCase> cases;
  for (const char* kind : {"skip_lookup", "late_lookup"})
    for (const Device device : {Device::cpu, Device::fake})
      for (const plan::Submit submit : {plan::Submit::early, plan::Submit::at_consume})
        for (const plan::IndexState state : {plan::IndexState::rotated, plan::IndexState::repeat}) {
          cases.push_back({kind, device, plan::TableMode::private_, 1, submit, state});
          cases.push_back({kind, device, plan::TableMode::shared, 2, submit, state});
          cases.push_back({kind, device, plan::TableMode::dp_sharded, 2, submit, state});
        }
  return cases;
}

class LookupFaults : public testing::TestWithParam<FaultCase> {};

TEST_P(LookupFaults, EndWithBadData) {
  const FaultCase& c = GetParam();
  StepRun run;
  run.scenario = two_layers(c.tp, 2, c.mode);
  run.scenario.prefetch.submit = c.submit;
  run.scenario.workload.index_state = c.index_state;
  run.device = c.device;
  run.slots = {checked_slot(5)};
  run.slots[0].check_hidden = false;  // as after a block
  expect_ok(run_ranks(run));

  run.scenario.fault.kind = c.kind;
  run.scenario.fault.stage = "in_step";
  run.scenario.fault.rank = 1;
  run.scenario.fault.step = 2;
  const auto ranks = run_ranks(run);
  // Own rows are gone on rank 1 without TP; with TP its peers miss its heads too.
  EXPECT_EQ(static_cast<int>(ranks[1].exit), 5) << ranks[1].error;
  EXPECT_NE(ranks[1].error.find("layer 1, token 0, column"), std::string::npos) << ranks[1].error;
  EXPECT_NE(ranks[1].error.find("the lookup did not run or came too late"), std::string::npos) << ranks[1].error;
  EXPECT_EQ(static_cast<int>(ranks[0].exit), c.tp == 2 ? 5 : 0) << ranks[0].error;
}

INSTANTIATE_TEST_SUITE_P(All, LookupFaults, testing::ValuesIn(fault_cases()), [](const auto& info) {
  const FaultCase& c = info.param;
  return std::string(c.kind) + (c.device == Device::cpu ? "_cpu_" : "_fake_") +
         (c.tp == 1                           ? "private"
          : c.mode == plan::TableMode::shared ? "shared"
                                              : "dp_sharded") +
         "_" + plan::name(c.submit) + "_" + plan::name(c.index_state);
});

// A slot that is not checked has the fault too, and goes on: nothing else looks.
TEST(LookupFaults, OnlyACheckFindsThem) {
  StepRun run;
  run.scenario = two_layers(1, 1, plan::TableMode::private_);
  run.scenario.fault.kind = "skip_lookup";
  run.scenario.fault.stage = "in_step";
  run.scenario.fault.rank = 0;
  run.slots = {timed_slot(2)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  EXPECT_EQ(ranks[0].facts.at(0)["lookups"][0]["rows"], 0);
  EXPECT_GT(ranks[0].facts.at(0)["lookups"][1]["rows"], 0);
}

TEST(StepFaults, AFailingRankSaysWhere) {
  StepRun run;
  run.scenario = two_layers(1, 1, plan::TableMode::private_);
  run.scenario.fault.kind = "fail";
  run.scenario.fault.stage = "in_step";
  run.scenario.fault.rank = 0;
  run.scenario.fault.step = 1;
  run.slots = {timed_slot(3)};
  const auto ranks = run_ranks(run);
  EXPECT_EQ(static_cast<int>(ranks[0].exit), 1);
  EXPECT_EQ(ranks[0].error, "planted fault: rank 0 fails in step 1");
}

TEST(StepFaults, WhatIsNotBuiltIsRefused) {
  StepRun run;
  run.scenario = two_layers(1, 1, plan::TableMode::private_);
  run.slots = {timed_slot(1)};
  run.scenario.model.backbone.layers = 3;  // Engram layers 1 and 3
  const auto ranks = run_ranks(run);
  EXPECT_EQ(static_cast<int>(ranks[0].exit), 2);
  EXPECT_NE(ranks[0].error.find("Engram layer 3"), std::string::npos) << ranks[0].error;
}

}  // namespace
}  // namespace eb::rank::test
