#include "harness/plan/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "harness/base/error.h"

namespace eb::plan {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTiny = R"({"name": "t", "model": {"preset": "tiny", "backbone": {"scale": 0.0001}},
  "workload": {"batches": [{"prefill": [5], "decode": 2}, {"decode": 3, "replica": 1}],
               "tokens": {"kind": "uniform"}}})";

// The text of the usage error that `text` gives; fails where there is none or another exit code.
std::string error_of(const std::string& text, const std::vector<Setting>& settings = {}) {
  try {
    static_cast<void>(parse_plan(text, "/folder", settings));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

std::string error_of_setting(const std::string& key, const std::string& value) {
  return error_of(kTiny, {{key, value}});
}

Plan plan_of(const std::vector<Setting>& settings) { return parse_plan(kTiny, "/folder", settings); }

TEST(Scenario, NameAloneIsTheDefaultPlan) {
  const Plan plan = parse_plan(R"({"name": "x"})", "", {});
  ASSERT_EQ(plan.arms.size(), 1u);
  EXPECT_EQ(plan.arms[0].name, "A");
  const Scenario& scenario = plan.arms[0].scenario;
  EXPECT_EQ(scenario.model.base.preset, "deepseek-v4.1-flash");
  EXPECT_EQ(scenario.model.base.hidden, 5120);
  EXPECT_EQ(scenario.model.backbone.layers, 40);
  EXPECT_EQ(scenario.parallel.tp, 2);
  EXPECT_EQ(scenario.storage.policy.kind, PolicyKind::bind);
  EXPECT_EQ(scenario.storage.policy.nodes, std::vector<int>{0});
  EXPECT_EQ(scenario.workload.batches[0].prefill, std::vector<std::int64_t>{512});
  EXPECT_EQ(scenario.workload.batches[0].decode, 64);
  EXPECT_EQ(plan.experiment.pairs, 8);
}

TEST(Scenario, RoundTripsThroughJson) {
  const Plan plan = plan_of({{"prefetch.grid_cap", "0.25"},
                             {"storage.pretouch", "parallel:3"},
                             {"device.fake_durations_us.lookup.l14", "7.5"},
                             {"workload.tokens.kind", "file"},
                             {"workload.tokens.file", "t.bin"}});
  const Scenario& scenario = plan.arms[0].scenario;
  EXPECT_EQ(scenario.workload.tokens.file, "/folder/t.bin");
  EXPECT_EQ(scenario.device.fake_durations_us.at("lookup.l14"), 7.5);
  EXPECT_EQ(scenario.storage.pretouch_threads, 3);
  const std::string text = to_json(scenario);
  const Scenario again = scenario_from_json(text);
  EXPECT_EQ(to_json(again), text);
  EXPECT_EQ(again.model.base.head_rows, scenario.model.base.head_rows);
  EXPECT_EQ(again.workload.batches[1].replica, 1);
  EXPECT_EQ(again.workload.batches[0].replica, -1);
  EXPECT_EQ(again.prefetch.grid_cap.value, 0.25);
}

TEST(Scenario, ExpandedTextIsAScenarioWithTheSameHash) {
  const std::vector<Setting> settings{{"experiment.factor", "prefetch.submit"},
                                      {"experiment.arms", R"({"early": "early", "at_consume": "at_consume"})"},
                                      {"experiment.controls.stock.storage.policy", "none"},
                                      {"workload.tokens.kind", "file"},
                                      {"workload.tokens.file", "t.bin"}};
  const Plan plan = plan_of(settings);
  const Plan again = parse_plan(plan.expanded_json, "/elsewhere", {});
  EXPECT_EQ(again.expanded_json, plan.expanded_json);
  EXPECT_EQ(again.sha256, plan.sha256);
  ASSERT_EQ(plan.arms.size(), 3u);
  EXPECT_EQ(plan.arms[0].name, "early");  // the order of the file, not of the alphabet
  EXPECT_TRUE(plan.arms[2].control);
}

TEST(Scenario, TheHashDoesNotDependOnWhereTheFilesLie) {
  const std::vector<Setting> settings{{"workload.tokens.kind", "file"}, {"workload.tokens.file", "data/t.bin"}};
  const Plan here = parse_plan(kTiny, "/here", settings);
  const Plan there = parse_plan(kTiny, "/there", settings);
  EXPECT_EQ(here.sha256, there.sha256);
  EXPECT_EQ(here.arms[0].scenario.workload.tokens.file, "/here/data/t.bin");
  EXPECT_EQ(there.arms[0].scenario.workload.tokens.file, "/there/data/t.bin");
  EXPECT_NE(here.sha256, parse_plan(kTiny, "/here", {{"seed", "2"}}).sha256);
}

TEST(Scenario, SyntaxErrorsNameLineAndColumn) {
  EXPECT_THAT(error_of("{\"name\": \"x\",\n  \"seed\": 1,,\n}"), HasSubstr("line 2, column 13"));
  EXPECT_THAT(error_of("{\"name\": \"x\", \"seed\": NaN}"), HasSubstr("line 1, column"));
  EXPECT_THAT(error_of("{\"name\": \"x\", \"storage\": {\"tolerance\": 1e999}}"), HasSubstr("number overflow"));
  EXPECT_THAT(error_of(""), HasSubstr("line 1"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("a scenario is a JSON object"));
}

TEST(Scenario, AKeyGivenTwiceIsAnError) {
  EXPECT_THAT(error_of(R"({"name": "x", "seed": 1, "seed": 2})"), HasSubstr("the key seed is given twice"));
  EXPECT_THAT(error_of(R"({"name": "x", "workload": {"batches": [{"decode": 1, "decode": 2}]}})"),
              HasSubstr("the key decode is given twice"));
  EXPECT_THAT(error_of_setting("experiment.arms", R"({"A": 1, "A": 2})"), HasSubstr("given twice"));
}

TEST(Scenario, UnknownKeysNameTheNearest) {
  EXPECT_THAT(error_of(R"({"name": "x", "storage": {"polcy": "bind:0"}})"),
              HasSubstr("unknown key storage.polcy; nearest: storage.policy"));
  EXPECT_THAT(error_of(R"({"name": "x", "storge": {"policy": "bind:0"}})"),
              HasSubstr("unknown key storge; nearest: storage"));
  EXPECT_THAT(error_of(R"({"name": "x", "table_mode": "shared"})"),
              HasSubstr("unknown key table_mode; nearest: parallel.table_mode"));
  EXPECT_THAT(error_of(R"({"name": "x", "workload": {"batches": [{"decod": 1}]}})"),
              HasSubstr("unknown key workload.batches.0.decod; nearest: workload.batches.*.decode"));
  EXPECT_THAT(error_of(R"({"name": "x", "storage.policy": "bind:0"})"), HasSubstr("unknown key storage.policy"));
  EXPECT_THAT(error_of_setting("storage.polycy", "bind:0"), HasSubstr("nearest: storage.policy"));
}

TEST(Scenario, WrongTypesAndRangesAreNamed) {
  EXPECT_THAT(error_of(R"({"name": "x", "parallel": {"tp": "two"}})"),
              HasSubstr("parallel.tp: expected an integer from 1 to 64, found \"two\""));
  EXPECT_THAT(error_of(R"({"name": "x", "parallel": {"tp": 0}})"), HasSubstr("found 0"));
  EXPECT_THAT(error_of(R"({"name": "x", "parallel": {"tp": 1.5}})"), HasSubstr("found 1.5"));
  EXPECT_THAT(error_of(R"({"name": "x", "parallel": 3})"), HasSubstr("parallel: expected an object"));
  EXPECT_THAT(error_of(R"({"name": "x", "seed": 18446744073709551616})"), HasSubstr("seed: expected an integer"));
  EXPECT_THAT(error_of(R"({"name": "x", "seed": null})"), HasSubstr("found null"));
  EXPECT_THAT(error_of(R"({"seed": 1})"), HasSubstr("name: missing"));
  EXPECT_THAT(error_of(R"({"name": "x", "model": {"table_scale": 0}})"), HasSubstr("above 0 and up to 16"));
  EXPECT_THAT(error_of(R"({"name": "x", "experiment": {"pairs": 0}})"), HasSubstr("experiment.pairs"));
  EXPECT_THAT(error_of(R"({"name": "x", "experiment": {"blocks": 0}})"), HasSubstr("experiment.blocks"));
}

TEST(Scenario, UnknownValuesNameTheNearest) {
  EXPECT_THAT(error_of(R"({"name": "x", "model": {"preset": "deepseek-v4.1-flsh"}})"),
              HasSubstr("nearest: deepseek-v4.1-flash"));
  EXPECT_THAT(error_of(R"({"name": "x", "storage": {"backing": "shmm"}})"), HasSubstr("nearest: shm"));
  EXPECT_THAT(error_of(R"({"name": "x", "storage": {"policy": "bnd:0"}})"), HasSubstr("nearest: bind"));
}

TEST(Scenario, ASettingThatIsNoTextIsRefused) {
  // Found by fuzzing: the bytes reached the JSON writer, which threw its own error.
  EXPECT_THAT(error_of_setting("question", "\xF7"), HasSubstr("question: the value is not UTF-8"));
}

TEST(Scenario, SettingsReachListsAndTakeBareWords) {
  const Scenario scenario = plan_of({{"workload.batches.0.decode", "8"},
                                     {"workload.batches.0.prefill.0", "9"},
                                     {"storage.policy", "interleave:all"},
                                     {"seed", "2e2"}})
                                .arms[0]
                                .scenario;
  EXPECT_EQ(scenario.workload.batches[0].decode, 8);
  EXPECT_EQ(scenario.workload.batches[0].prefill[0], 9);
  EXPECT_TRUE(scenario.storage.policy.all_nodes);
  EXPECT_EQ(scenario.seed, 200u);
  EXPECT_THAT(error_of_setting("workload.batches.2.decode", "8"), HasSubstr("has 2 entries"));
  EXPECT_THAT(error_of_setting("storage", "8"), HasSubstr("holds several keys"));
}

TEST(Scenario, ReplicasTakeTheirOwnBatchesInOrder) {
  const WorkloadSpec workload = plan_of({}).arms[0].scenario.workload;
  EXPECT_EQ(workload.step_tokens(0, 0), 7);
  EXPECT_EQ(workload.step_tokens(0, 1), 7);  // replica 0 has one entry
  EXPECT_EQ(workload.step_tokens(1, 0), 7);
  EXPECT_EQ(workload.step_tokens(1, 1), 3);
  EXPECT_EQ(workload.max_tokens(2), 7);
  WorkloadSpec one;
  one.batches = {{{4}, 0, 0}};
  EXPECT_EQ(one.step_tokens(1, 0), 0);  // idle
}

TEST(Scenario, LoadReadsTheFileAndResolvesItsPaths) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "plan_test_scenario";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "s.json").string();
  std::ofstream(path) << R"({"name": "x", "workload": {"tokens": {"kind": "file", "file": "data/t.bin"}}})";
  const Plan plan = load_plan(path, {});
  EXPECT_EQ(plan.arms[0].scenario.workload.tokens.file, (folder / "data/t.bin").string());
  std::ofstream(path) << "{";
  try {
    static_cast<void>(load_plan(path, {}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_THAT(error.what(), HasSubstr("s.json: line 1, column 2"));
  }
  std::filesystem::remove_all(folder);
  try {
    static_cast<void>(load_plan(path, {}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
  }
}

}  // namespace
}  // namespace eb::plan
