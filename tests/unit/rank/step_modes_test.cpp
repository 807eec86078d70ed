// One step, many ways: table modes, submit times, stream forms and orders must give the same bits.
#include <gtest/gtest.h>

#include "tests/unit/rank/step_fixture.h"

namespace eb::rank::test {
namespace {

using nlohmann::json;

std::vector<json> digests(const std::vector<RankOutcome>& ranks, std::size_t slot = 0) {
  expect_ok(ranks);
  std::vector<json> out;
  for (const RankOutcome& rank : ranks) out.push_back(slot < rank.facts.size() ? rank.facts[slot]["digests"] : json());
  return out;
}

class StepOnDevice : public testing::TestWithParam<Device> {};

TEST_P(StepOnDevice, TableModesAgreeBitForBit) {
  for (const int tp : {1, 2}) {
    std::vector<std::vector<json>> modes;
    for (const plan::TableMode mode :
         {plan::TableMode::private_, plan::TableMode::shared, plan::TableMode::dp_sharded}) {
      StepRun run;
      run.scenario = two_layers(tp, 2, mode);
      run.device = GetParam();
      run.slots = {checked_slot(3, 4)};
      modes.push_back(digests(run_ranks(run)));
    }
    // Ids, rows and, since the batch shapes are equal, hidden states.
    EXPECT_EQ(modes[0], modes[1]) << "tp " << tp;
    EXPECT_EQ(modes[0], modes[2]) << "tp " << tp;
    EXPECT_EQ(modes[0][0]["ids"].get<std::string>().size(), 64U);
    EXPECT_NE(modes[0][0]["rows"], modes[0][static_cast<std::size_t>(tp)]["rows"])
        << "replicas have tokens of their own";
  }
}

TEST_P(StepOnDevice, SubmitStreamsOrderAndLayoutChangeNoBit) {
  std::vector<json> first;
  for (const plan::Layout layout : {plan::Layout::split, plan::Layout::interleaved})
    for (const plan::Submit submit : {plan::Submit::early, plan::Submit::at_consume})
      for (const plan::Streams streams : {plan::Streams::fifo, plan::Streams::per_layer})
        for (const plan::Order order : {plan::Order::token, plan::Order::table}) {
          StepRun run;
          run.scenario = two_layers(2, 2, plan::TableMode::shared);
          run.scenario.storage.layout = layout;
          run.scenario.prefetch.submit = submit;
          run.scenario.prefetch.streams = streams;
          run.scenario.prefetch.order = order;
          run.device = GetParam();
          run.slots = {checked_slot(4)};
          const std::vector<json> found = digests(run_ranks(run));
          if (first.empty()) first = found;
          EXPECT_EQ(found, first) << plan::name(layout) << " " << plan::name(submit) << " " << plan::name(streams)
                                  << " " << plan::name(order);
        }
}

// A slot of many steps must end where a slot of its last step alone ends: ids, contexts and staging of steps in flight
// do not disturb each other.
TEST_P(StepOnDevice, StepsInFlightKeepTheirOwnIds) {
  for (const plan::TableMode mode : {plan::TableMode::shared, plan::TableMode::dp_sharded}) {
    StepRun run;
    run.scenario = two_layers(1, 2, mode);
    run.scenario.workload.batches = {batch({9}, 2), batch({1, 4}, 7), batch({}, 1)};
    run.device = GetParam();
    run.slots = {checked_slot(8, 2), checked_slot(1, 9), checked_slot(1, 8)};
    const auto ranks = run_ranks(run);
    const auto many = digests(ranks, 0);
    EXPECT_EQ(many, digests(ranks, 1));
    EXPECT_NE(many[0]["ids"], digests(ranks, 2)[0]["ids"]) << "each step has fresh ids";
  }
}

// Arms of one allocation alternate slot by slot: another stream form, more tokens than before, then fewer.
TEST_P(StepOnDevice, ArmsAlternateOnOneRunner) {
  StepRun run;
  run.scenario = two_layers(2, 1, plan::TableMode::private_);
  run.device = GetParam();
  plan::Scenario other = run.scenario;
  other.prefetch.submit = plan::Submit::at_consume;
  other.prefetch.streams = plan::Streams::per_layer;
  other.workload.batches = {batch({40}, 8)};
  run.arms = {run.scenario, other, run.scenario};
  run.slots = {checked_slot(2), checked_slot(2), checked_slot(2)};
  const auto ranks = run_ranks(run);
  EXPECT_EQ(digests(ranks, 0), digests(ranks, 2));
  EXPECT_NE(digests(ranks, 0), digests(ranks, 1));
}

TEST_P(StepOnDevice, HiddenStatesStayWithinTheirBound) {
  for (const bool sequence_parallel : {false, true}) {
    StepRun run;
    run.scenario = two_layers(2, 1, plan::TableMode::private_);
    run.scenario.parallel.sequence_parallel = sequence_parallel;
    run.scenario.workload.batches = {batch({9}, 2)};  // 11 tokens: the second window of 6 has one that is padding
    run.device = GetParam();
    run.slots = {checked_slot(2)};
    const auto ranks = run_ranks(run);
    expect_ok(ranks);
    for (const RankOutcome& rank : ranks) {
      const json& hidden = rank.facts.at(0)["checks"]["hidden"];
      EXPECT_EQ(hidden["tokens"], 8);  // four of each layer
      EXPECT_GT(hidden["max_error"].get<double>(), 0.001) << "a bound this loose would find nothing";
      EXPECT_LE(hidden["max_error"].get<double>(), 1.0);
    }
  }
}

// The backbone stand-in really works on the hidden states, as often as stated.
TEST_P(StepOnDevice, BackboneLeavesItsMarkOnHiddenStates) {
  std::vector<json> found;
  for (const std::int64_t passes : {0, 1, 2}) {
    StepRun run;
    run.scenario = two_layers(1, 1, plan::TableMode::private_);
    plan::Backbone& backbone = run.scenario.model.backbone;
    if (passes == 0) backbone.weight_bytes_per_layer = 0;
    backbone.flops_per_token_per_layer *= passes;
    run.device = GetParam();
    run.slots = {checked_slot(1)};
    found.push_back(digests(run_ranks(run))[0]);
  }
  EXPECT_EQ(found[0]["rows"], found[1]["rows"]);
  EXPECT_NE(found[0]["hidden"], found[1]["hidden"]);
  EXPECT_NE(found[1]["hidden"], found[2]["hidden"]);
}

TEST_P(StepOnDevice, ExpertExchangeCouplesUnevenReplicas) {
  StepRun run;
  run.scenario = two_layers(1, 2, plan::TableMode::shared);
  run.scenario.parallel.ep = 2;
  run.scenario.model.backbone.expert_bytes_per_token = 100;
  run.scenario.workload.batches = {batch({12}, 0, 0), batch({}, 3, 1)};
  run.device = GetParam();
  run.slots = {checked_slot(2)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  for (const RankOutcome& rank : ranks) {
    const json& facts = rank.facts.at(0);
    EXPECT_FALSE(facts["replicas_uncoupled"].get<bool>());
    std::int64_t layers = 0;
    for (const json& collective : facts["collectives"]) {
      EXPECT_EQ(collective["object"], "expert");
      EXPECT_EQ(collective["calls"], 2);
      EXPECT_EQ(collective["bytes"], 2 * 608);  // ceil(12 * 100 / 2) = 600 to the one peer, in whole 16 B
      ++layers;
    }
    EXPECT_EQ(layers, 4);
    EXPECT_EQ(times_of(rank.slots[0], EventKind::expert_done, 2).size(), 2U);
  }
  run.scenario.parallel.ep = 1;
  EXPECT_TRUE(run_ranks(run).at(0).facts.at(0)["replicas_uncoupled"].get<bool>());
}

TEST_P(StepOnDevice, StubLooksNothingUpAndSaysSo) {
  StepRun run;
  run.scenario = two_layers(2, 1, plan::TableMode::private_);
  run.scenario.storage.backing = plan::Backing::stub;
  run.device = GetParam();
  run.slots = {checked_slot(3)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  const json& facts = ranks[0].facts.at(0);
  EXPECT_TRUE(facts["stub"].get<bool>());
  EXPECT_TRUE(facts["lookups"].empty());
  EXPECT_TRUE(facts["checks"]["rows"].is_null());
  EXPECT_TRUE(facts["digests"]["rows"].is_null());
  EXPECT_GT(facts["checks"]["ids"]["compared"], 0);
}

TEST_P(StepOnDevice, EveryEventComesOnceAStepInOrder) {
  StepRun run;
  run.scenario = two_layers(2, 2, plan::TableMode::dp_sharded);
  run.scenario.prefetch.submit = plan::Submit::at_consume;
  run.device = GetParam();
  run.slots = {timed_slot(3)};
  const auto ranks = run_ranks(run);
  expect_ok(ranks);
  const SlotResult& slot = ranks[3].slots.at(0);
  const std::vector<EventKind> chain = {
      EventKind::release,          EventKind::lookup_start,       EventKind::lookup_done,
      EventKind::consumer_resumed, EventKind::row_exchange_start, EventKind::row_exchange_done,
      EventKind::gather_start,     EventKind::gather_done,        EventKind::wkv_start,
      EventKind::wkv_done,         EventKind::wkv_gather_start,   EventKind::wkv_gather_done,
      EventKind::gate_done};
  for (const int layer : {1, 3}) {
    for (std::size_t i = 0; i + 1 < chain.size(); ++i) {
      const auto before = times_of(slot, chain[i], layer);
      const auto after = times_of(slot, chain[i + 1], layer);
      ASSERT_EQ(before.size(), 3U) << name(chain[i]);
      ASSERT_EQ(after.size(), 3U) << name(chain[i + 1]);
      for (std::size_t step = 0; step < 3; ++step) EXPECT_LE(before[step], after[step]) << name(chain[i + 1]);
    }
  }
  for (const EventKind kind : {EventKind::step_start, EventKind::id_exchange_start, EventKind::id_exchange_done,
                               EventKind::ids_ready, EventKind::step_done})
    EXPECT_EQ(times_of(slot, kind).size(), 3U) << name(kind);
  for (const int layer : {0, 1, 2, 3}) EXPECT_EQ(times_of(slot, EventKind::backbone_done, layer).size(), 3U);
  // A host record beside each device record.
  EXPECT_EQ(slot.events.size() % 2, 0U);
  for (std::size_t i = 0; i < slot.events.size(); i += 2) {
    EXPECT_EQ(slot.events[i].clock, static_cast<std::uint8_t>(Clock::host));
    EXPECT_EQ(slot.events[i + 1].clock, static_cast<std::uint8_t>(Clock::device));
    EXPECT_EQ(slot.events[i].kind, slot.events[i + 1].kind);
    EXPECT_LE(slot.events[i].time_ns, slot.events[i + 1].time_ns);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, StepOnDevice, testing::Values(Device::cpu, Device::fake),
                         [](const auto& info) { return info.param == Device::cpu ? "cpu" : "fake"; });

}  // namespace
}  // namespace eb::rank::test
