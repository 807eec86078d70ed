#include "harness/evidence/hypotheses.h"

#include <gtest/gtest.h>

#include "tests/unit/evidence/support.h"

namespace eb::evidence {
namespace {

Hypothesis of(const HypothesisInput& input, std::size_t number) { return judge_hypotheses(input).at(number - 1); }

TEST(Hypotheses, H1NeedsPagesLookupAndTraffic) {
  HypothesisInput input;
  input.factor = "storage.policy";
  input.pages = LinkStatus::held;
  input.findings["lookup_us"] = judged(around(0.0));
  EXPECT_EQ(of(input, 1).standing, Standing::weakened);
  input.findings["lookup_us"] = judged(around(0.2));
  EXPECT_EQ(of(input, 1).standing, Standing::not_testable) << "without counters the traffic is unknown";
  input.cross_socket.baseline_bytes = 1e6;
  input.cross_socket.arm_bytes = 1e6;
  EXPECT_EQ(of(input, 1).standing, Standing::not_testable) << "the traffic stayed as it was";
  input.cross_socket.arm_bytes = 1e3;
  EXPECT_EQ(of(input, 1).standing, Standing::not_testable) << "the traffic went the other way";
  input.cross_socket.arm_bytes = 2e6;
  EXPECT_EQ(of(input, 1).standing, Standing::supported);
  EXPECT_NEAR(of(input, 1).figures.at("lookup_us_ratio"), std::exp(0.2), 1e-9);
  EXPECT_EQ(of(input, 1).figures.at("cross_socket_bytes_per_step_arm"), 2e6);
  input.pages = LinkStatus::broken;
  EXPECT_EQ(of(input, 1).standing, Standing::not_testable);
  input.factor = "prefetch.submit";
  EXPECT_EQ(of(input, 1).standing, Standing::not_testable);
}

TEST(Hypotheses, H2NeedsReplicasAndCounters) {
  HypothesisInput input;
  input.factor = "parallel.dp";
  input.findings["lookup_us"] = judged(around(0.0));
  EXPECT_EQ(of(input, 2).standing, Standing::weakened);
  input.findings["lookup_us"] = judged(around(0.2));
  EXPECT_EQ(of(input, 2).standing, Standing::not_testable);
  EXPECT_NE(of(input, 2).why.find("no counter of it was read"), std::string::npos);
  input.host.baseline_bytes = 1e6;
  input.host.arm_bytes = 1e6;
  EXPECT_EQ(of(input, 2).standing, Standing::weakened) << "slower for another reason than the host";
  input.host.arm_bytes = 3e6;
  EXPECT_EQ(of(input, 2).standing, Standing::supported);
  input.factor = "workload.active_readers";
  input.findings["aggregate_rows_per_s"] = judged(around(0.3));
  EXPECT_EQ(of(input, 2).standing, Standing::supported) << "more readers of one table are more replicas";
  EXPECT_GT(of(input, 2).figures.at("aggregate_rows_per_s_ratio"), 1.3);
  input.factor = "prefetch.submit";
  EXPECT_EQ(of(input, 2).standing, Standing::not_testable);
}

TEST(Hypotheses, H3LooksAtTheEarliestConsumer) {
  HypothesisInput input;
  EXPECT_EQ(of(input, 3).standing, Standing::not_testable);
  input.first_exposed_us = 0;
  input.first_recoverable_us = 0;
  EXPECT_EQ(of(input, 3).standing, Standing::weakened);
  input.first_exposed_us = 12;
  EXPECT_EQ(of(input, 3).standing, Standing::weakened) << "the wait comes from elsewhere";
  input.first_recoverable_us = 9;
  EXPECT_EQ(of(input, 3).standing, Standing::supported);
}

TEST(Hypotheses, H4IsJudgedTowardsEarly) {
  HypothesisInput input;
  input.factor = "prefetch.submit";
  input.arm_is_early = true;
  input.findings["exposed_us"] = judged(around(-0.2));
  input.findings["front_us"] = judged(around(0.1));
  input.findings["step_us"] = judged(around(0.0));
  EXPECT_EQ(of(input, 4).standing, Standing::supported);
  input.findings["front_us"] = judged(around(0.0));
  EXPECT_EQ(of(input, 4).standing, Standing::not_testable);
  input.findings["step_us"] = judged(around(-0.05));
  EXPECT_EQ(of(input, 4).standing, Standing::weakened);
  // The other way round: the arm that leaves early waits longer, and its front layers are faster.
  input.arm_is_early = false;
  input.findings["exposed_us"] = judged(around(0.2));
  input.findings["front_us"] = judged(around(-0.1));
  input.findings["step_us"] = judged(around(0.0));
  EXPECT_EQ(of(input, 4).standing, Standing::supported);
}

TEST(Hypotheses, CopiesArePrematureWithoutA1AndB1) {
  EXPECT_NE(copies_advice("storage.copies", "", "").find("premature: A1/B1 evidence missing"), std::string::npos);
  EXPECT_NE(copies_advice("storage.copies", "a1: same", "").find("premature"), std::string::npos);
  EXPECT_EQ(copies_advice("storage.copies", "a1: same", "b1: better"),
            "rests on A1 (a1: same) and B1 (b1: better) of this machine");
  EXPECT_EQ(copies_advice("storage.policy", "", ""), "");
}

}  // namespace
}  // namespace eb::evidence
