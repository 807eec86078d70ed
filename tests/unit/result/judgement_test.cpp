#include "harness/result/judgement.h"

#include <gtest/gtest.h>

#include <cmath>

namespace eb::result {
namespace {

constexpr int kPairs = 8;

// The basis of an experiment whose arms share allocations: one re-roll a pair, floors of nothing, all conditions well.
Json basis(const std::string& factor, const std::vector<std::string>& arms, const std::string& primary) {
  Json pairs = Json::array();
  Json observed = Json::array();
  for (int pair = 0; pair < kPairs; ++pair) {
    Json rerolls = Json::object();
    for (const std::string& arm : arms) {
      rerolls[arm] = pair;
      observed.push_back({{"pair", pair},
                          {"arm", arm},
                          {"shares", {{"0", 1.0}}},
                          {"requested", {{"0", 1.0}}},
                          {"unqueryable_share", 0.0}});
    }
    pairs.push_back({{"pair", pair}, {"rerolls", rerolls}});
  }
  Json floors = Json::object();
  for (const char* metric : {"exposed_us.p50", "front_us.p50", "lookup_us.p50", "step_us.p50"}) floors[metric] = 0.001;
  return {{"factor", factor},
          {"arms", arms},
          {"early_arms", Json::array()},
          {"primary", primary},
          {"guards", {"front_us.p50"}},
          {"delta", 0.02},
          {"seed", 1},
          {"planned_pairs", kPairs},
          {"first_layer", 1},
          {"pairs", pairs},
          {"failed_gates", Json::array()},
          {"judged_of_step", {"exposed_us"}},
          {"floors", floors},
          {"conditions",
           {{"complete", true},
            {"checks_passed", true},
            {"emulated_time", false},
            {"time_sliced", false},
            {"single_node", false},
            {"oversubscribed", false}}},
          {"pages",
           {{"claim", "same"},
            {"one_allocation", true},
            {"tolerance", 0.01},
            {"observed", observed},
            {"ranks", Json::array()}}}};
}

// The same figures in each of two blocks of every pair, with a little spread between pairs.
void fill(Samples& samples, const std::string& arm, const std::string& metric, double us) {
  for (int pair = 0; pair < kPairs; ++pair) {
    const double value = us * (1 + 0.0005 * pair);
    for (int block = 0; block < 2; ++block) samples.replicas[{arm, metric}][pair][block] = {value, value, value};
  }
}

void fill_arm(Samples& samples, const std::string& arm, double exposed, double front, double step) {
  fill(samples, arm, "exposed_us", exposed);
  fill(samples, arm, "front_us", front);
  fill(samples, arm, "step_us", step);
  fill(samples, arm, "lookup_us", 100);
}

Json only(const Judgement& judgement) { return judgement.comparisons.at(0); }

TEST(Judgement, AWaitThatVanishesIsJudgedByTheStepItGivesBack) {
  const Json evidence = basis("prefetch.submit", {"at_consume", "early"}, "exposed_us.p50");
  Samples samples;
  fill_arm(samples, "at_consume", 200, 500, 1000);
  fill_arm(samples, "early", 0, 500, 900);  // half of what the wait lost is lost elsewhere
  const Json found = only(judge(evidence, samples));
  EXPECT_EQ(found["verdict"], "better") << found["text"];
  EXPECT_EQ(found["primary"]["judged"], "of_step");
  EXPECT_NEAR(found["primary"]["effect_ratio"].get<double>(), 0.8, 1e-9) << "the wait was a fifth of the step";
  EXPECT_NE(found["primary"]["text"].get<std::string>().find("-20.00 % of the baseline's step"), std::string::npos);
  EXPECT_EQ(found["chain"]["broke_at"], nullptr);
}

TEST(Judgement, AWaitThatGrowsFromNothingIsWorse) {
  const Json evidence = basis("prefetch.submit", {"early", "at_consume"}, "exposed_us.p50");
  Samples samples;
  fill_arm(samples, "early", 0, 500, 900);
  fill_arm(samples, "at_consume", 90, 500, 1000);
  const Json found = only(judge(evidence, samples));
  EXPECT_EQ(found["verdict"], "worse") << found["text"];
  EXPECT_NEAR(found["primary"]["effect_ratio"].get<double>(), 1.1, 1e-9);
}

TEST(Judgement, AWaitThatIsNothingInBothArmsIsTheSame) {
  const Json evidence = basis("prefetch.submit", {"A", "B"}, "exposed_us.p50");
  Samples samples;
  fill_arm(samples, "A", 0, 500, 900);
  fill_arm(samples, "B", 0, 500, 900);
  EXPECT_EQ(only(judge(evidence, samples))["verdict"], "same");
}

TEST(Judgement, AResultOfBeforeTheRuleKeepsItsVerdict) {
  Json evidence = basis("prefetch.submit", {"at_consume", "early"}, "exposed_us.p50");
  evidence.erase("judged_of_step");
  Samples samples;
  fill_arm(samples, "at_consume", 200, 500, 1000);
  fill_arm(samples, "early", 0, 500, 900);
  const Json found = only(judge(evidence, samples));
  EXPECT_EQ(found["verdict"], "inconclusive");
  EXPECT_EQ(found["reason"], "no_ratio");
  EXPECT_FALSE(found["primary"].contains("judged"));
}

TEST(Judgement, AWaitThatFillsTheStepHasNoRest) {
  const Json evidence = basis("prefetch.submit", {"A", "B"}, "exposed_us.p50");
  Samples samples;
  fill_arm(samples, "A", 1000, 0, 1000);
  fill_arm(samples, "B", 500, 0, 500);
  EXPECT_EQ(only(judge(evidence, samples))["reason"], "no_ratio");
}

TEST(Judgement, AFailedGateDropsItsPair) {
  Json evidence = basis("prefetch.submit", {"A", "B"}, "lookup_us.p50");
  evidence["failed_gates"] = Json::array({{{"pair", 3}, {"text", "re-roll 3, block 0: clocks were throttled"}}});
  Samples samples;
  fill_arm(samples, "A", 0, 500, 900);
  fill_arm(samples, "B", 0, 500, 900);
  const Json found = only(judge(evidence, samples));
  EXPECT_EQ(found["primary"]["dropped_pairs"], 1);
  EXPECT_EQ(found["reason"], "gates_failed") << "one of eight is more than a tenth";
}

// Blocks of one re-roll have a partner in time; those of two re-rolls have none, and each side has its own median.
TEST(Judgement, BlocksOfTwoRerollsAreNotMatched) {
  Json evidence = basis("storage.policy", {"A", "B"}, "lookup_us.p50");
  for (Json& pair : evidence["pairs"]) pair["rerolls"]["B"] = 100 + pair["pair"].get<int>();
  Samples samples;
  for (int pair = 0; pair < kPairs; ++pair) {
    samples.replicas[{"A", "lookup_us"}][pair] = {{0, {100}}, {1, {300}}};
    samples.replicas[{"B", "lookup_us"}][100 + pair] = {{0, {110}}, {1, {220}}};
  }
  EXPECT_NEAR(only(judge(evidence, samples))["primary"]["effect_ratio"].get<double>(), 165.0 / 200, 1e-12);
}

Json cap(const std::string& arm, std::int64_t programs, std::int64_t tiles) {
  return {{"arm", arm},
          {"asked", arm},
          {"cap_programs", programs},
          {"rows_per_step_and_rank", 512.0},
          {"tiles_max", tiles},
          {"grid_max", std::min(programs, tiles)}};
}

// Caps 4, 16, 64: the wait shrinks with the cap, the front layers grow with it.
struct Caps {
  Json evidence = basis("prefetch.grid_cap", {"c16", "c4", "c64"}, "exposed_us.p50");
  Samples samples;

  explicit Caps(std::int64_t tiles) {
    evidence["grid_caps"] = {cap("c16", 16, tiles), cap("c4", 4, tiles), cap("c64", 64, tiles)};
    fill_arm(samples, "c4", 150, 500, 1000);
    fill_arm(samples, "c16", 5, 502, 900);
    fill_arm(samples, "c64", 0, 560, 950);
  }
};

TEST(GridCaps, NamesWhereTheLookupIsHiddenAndWhereTheFrontSlowsDown) {
  const Caps caps(128);
  const Json found = judge(caps.evidence, caps.samples).grid_caps;
  EXPECT_EQ(found["hidden_from"], (Json{{"arm", "c16"}, {"cap_programs", 16}}));
  EXPECT_EQ(found["front_slows_from"], (Json{{"arm", "c64"}, {"cap_programs", 64}})) << found["text"];
  EXPECT_EQ(found["front_reference_arm"], "c4");
  EXPECT_TRUE(found["tiles_reached_a_cap"].get<bool>());
  ASSERT_EQ(found["caps"].size(), 3U);
  EXPECT_EQ(found["caps"][0]["arm"], "c4") << "by cap, whatever the order of the arms";
  EXPECT_FALSE(found["caps"][0]["hidden"].get<bool>());
  EXPECT_NEAR(found["caps"][0]["exposed_step_share"]["mean"].get<double>(), 0.15, 1e-9);
  EXPECT_TRUE(found["caps"][1]["hidden"].get<bool>()) << "0.6 % of the step lies within 2 %";
  EXPECT_EQ(found["caps"][2]["front_against_smallest"]["verdict"], "worse");
}

TEST(GridCaps, SaysThatTilesNeverReachedTheCap) {
  const Caps caps(3);
  const Json found = judge(caps.evidence, caps.samples).grid_caps;
  EXPECT_FALSE(found["tiles_reached_a_cap"].get<bool>());
  EXPECT_EQ(found["front_slows_from"]["reason"], "tiles never reached a cap");
  EXPECT_NE(found["text"].get<std::string>().find("Tiles never reached the cap"), std::string::npos);
}

TEST(GridCaps, AsManyTilesAsProgramsReachTheCap) {
  const Caps caps(4);
  const Json found = judge(caps.evidence, caps.samples).grid_caps;
  EXPECT_TRUE(found["tiles_reached_a_cap"].get<bool>());
  EXPECT_TRUE(found["caps"][0]["cap_reached"].get<bool>());
  EXPECT_FALSE(found["caps"][1]["cap_reached"].get<bool>());
}

// The mean is 1.4 % of the step, but one pair in eight has a wait of 10 %: it cannot be told from a wait above 2 %.
TEST(GridCaps, AWaitThatIsSmallOnlyOnAverageHidesNothing) {
  Caps caps(128);
  for (const char* arm : {"c4", "c16", "c64"}) {
    fill_arm(caps.samples, arm, 1.8, 500, 1000);
    for (auto& [block, values] : caps.samples.replicas[{arm, "exposed_us"}][3]) values = {100, 100, 100};
  }
  const Json found = judge(caps.evidence, caps.samples).grid_caps;
  EXPECT_LT(found["caps"][0]["exposed_step_share"]["mean"].get<double>(), 0.02);
  EXPECT_FALSE(found["caps"][0]["hidden"].get<bool>());
  EXPECT_TRUE(found["hidden_from"].contains("reason"));
}

TEST(GridCaps, NamesNothingThatTheConditionsForbid) {
  Caps caps(128);
  caps.evidence["conditions"]["time_sliced"] = true;
  const Json found = judge(caps.evidence, caps.samples).grid_caps;
  EXPECT_EQ(found["hidden_from"]["reason"], "time_sliced");
  EXPECT_TRUE(found["front_slows_from"].contains("reason"));
  EXPECT_EQ(found["caps"][2]["hidden"], nullptr);
}

TEST(GridCaps, AWaitAtEveryCapNamesNone) {
  Caps caps(128);
  for (const char* arm : {"c4", "c16", "c64"}) fill_arm(caps.samples, arm, 100, 500, 1000);
  const Json found = judge(caps.evidence, caps.samples).grid_caps;
  EXPECT_NE(found["hidden_from"]["reason"].get<std::string>().find("at no cap"), std::string::npos);
  EXPECT_NE(found["front_slows_from"]["reason"].get<std::string>().find("at no cap"), std::string::npos);
}

TEST(GridCaps, OtherFactorsHaveNone) {
  const Json evidence = basis("prefetch.submit", {"A", "B"}, "lookup_us.p50");
  Samples samples;
  fill_arm(samples, "A", 0, 500, 900);
  fill_arm(samples, "B", 0, 500, 900);
  EXPECT_EQ(judge(evidence, samples).grid_caps, nullptr);
}

Json cite(const char* kind, const char* verdict, bool same_machine) {
  const Json said = {
      {"arms", {"a", "b"}}, {"verdict", verdict}, {"reason", "improved"}, {"pages", "held"}, {"text", "found so"}};
  return {{"cited", "runs/x"},  {"experiment", kind},           {"name", "x"},      {"result_sha256", ""},
          {"fingerprint", "f"}, {"same_machine", same_machine}, {"complete", true}, {"verdicts", Json::array({said})}};
}

TEST(Cites, CopiesNeedA1AndB1OfThisMachineThatSaySomething) {
  Json evidence = basis("storage.copies", {"one", "two"}, "lookup_us.p50");
  Samples samples;
  fill_arm(samples, "one", 0, 500, 900);
  fill_arm(samples, "two", 0, 500, 900);
  const auto advice = [&](const Json& cites) {
    evidence["cites"] = cites;
    return only(judge(evidence, samples))["advice"].get<std::string>();
  };
  EXPECT_NE(advice(Json::array()).find("premature: A1/B1 evidence missing (A1 and B1"), std::string::npos);
  EXPECT_NE(advice(Json::array({cite("A1", "worse", true)})).find("missing (B1"), std::string::npos);
  EXPECT_NE(advice({cite("A1", "worse", true), cite("B1", "better", false)}).find("missing (B1"), std::string::npos)
      << "another machine's";
  EXPECT_NE(advice({cite("A1", "void", true), cite("B1", "better", true)}).find("missing (A1"), std::string::npos)
      << "a void verdict is no ground";
  EXPECT_NE(advice({cite("A1", "worse", true), cite("B1", "better", true)}).find("rests on A1 (x: found so) and B1"),
            std::string::npos);
}

TEST(Counters, H2LooksAtTheTrafficOfTheArms) {
  Json evidence = basis("parallel.dp", {"dp1", "dp2"}, "lookup_us.p50");
  Samples samples;
  fill_arm(samples, "dp1", 0, 500, 900);
  fill_arm(samples, "dp2", 0, 500, 900);
  fill(samples, "dp2", "lookup_us", 130);
  const auto h2 = [&] { return judge(evidence, samples).hypotheses.at(1); };
  EXPECT_EQ(h2()["standing"], "not_testable");
  evidence["counters"] = {{"cross_socket_bytes", Json::object()},
                          {"host_bytes", {{"dp1", {{"value", nullptr}, {"reason", "perf_event_paranoid is 3"}}}}}};
  EXPECT_NE(h2()["why"].get<std::string>().find("perf_event_paranoid"), std::string::npos);
  evidence["counters"]["host_bytes"] = {{"dp1", 1e6}, {"dp2", 2e6}};
  EXPECT_EQ(h2()["standing"], "supported");
  EXPECT_EQ(h2()["figures"]["host_bytes_per_step_arm"], 2e6);
}

}  // namespace
}  // namespace eb::result
