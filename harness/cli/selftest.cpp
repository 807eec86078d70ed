// selftest: what this machine tells apart where nothing differs (A/A), and whether planted effects are found.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/cli/cli.h"
#include "harness/cli/execute.h"
#include "harness/cli/settings.h"
#include "harness/result/stored.h"
#include "harness/result/verify.h"
#include "placement/topology.h"

namespace eb::cli {

namespace {

using result::Json;

constexpr double kLargestFalseShare = 0.05;  // of A/A experiments that read better or worse
constexpr double kLargestVoidShare = 0.1;
constexpr double kLeastFoundShare = 0.9;

struct SelftestArguments {
  std::string scenario = "scenarios/selftest.json";
  std::string output;
  std::vector<std::string> settings;
  std::string seed;
  int experiments = 5;
  int injected = 0;
  double percent = 10;
  std::string only;
  bool resume = false;
  double rank_timeout_s = 60;
};

// Names of files in the scenario are relative to it.
std::string source_folder(const SelftestArguments& arguments) {
  return std::filesystem::absolute(arguments.scenario).parent_path().string();
}

// The scenario's first arm against itself.
plan::Plan aa_plan(const plan::Plan& base, const std::string& folder, std::uint64_t seed, const std::string& stage,
                   double percent) {
  Json document = Json::parse(base.expanded_json);
  Json& experiment = document["experiment"];
  for (const auto& [key, text] : base.arms.front().overrides) {
    std::string pointer = "/" + key;
    for (char& c : pointer) c = c == '.' ? '/' : c;
    document[Json::json_pointer(pointer)] = Json::parse(text);
  }
  experiment["factor"] = nullptr;
  experiment.erase("arms");
  experiment.erase("controls");
  experiment["aa"] = base.arms_share_allocation ? "together" : "apart";
  if (!stage.empty()) experiment["inject"] = {{"stage", stage}, {"percent", percent}, {"arm", "A2"}};
  document["seed"] = seed;
  return plan::parse_plan(document.dump(), folder, {});
}

// One experiment of the series; a finished one is taken as it is.
bool run_one(const plan::Plan& plan, const std::string& folder, const SelftestArguments& arguments,
             const Globals& globals) {
  if (result::ended_whole(folder)) {
    const Json stored = Json::parse(read_file(folder + "/plan.json"));
    if (stored.at("sha256") != plan.sha256) {
      fail(Exit::usage, "{} holds an experiment of another scenario or seed; choose another folder with -o", folder);
    }
    if (result::verify(folder).complete) return true;
  }
  const Prepared prepared = prepare(plan);
  Execution execution;
  execution.folder = folder;
  execution.force = true;  // what a killed series left
  execution.rank_timeout_ms = static_cast<std::int64_t>(arguments.rank_timeout_s * 1000);
  execution.command_line = "engram-bench selftest " + arguments.scenario;
  if (std::filesystem::exists(folder) && !std::filesystem::exists(folder + "/result.json")) {
    std::filesystem::remove_all(folder);  // killed before its first file
  }
  const Executed executed = execute(prepared, execution, globals);
  if (executed.exit == Exit::ok) return true;
  throw Error(executed.exit, fmt::format("selftest: {} did not go through", folder));
}

result::AaPairs log_ratios_of(const Json& result) {
  result::AaPairs out;
  const Json& comparison = result.at("comparisons").at(0);
  const auto add = [&](const Json& finding) {
    if (finding.contains("log_ratios") && !finding.at("log_ratios").empty()) {
      out[finding.at("metric").get<std::string>()] = finding.at("log_ratios").get<std::vector<double>>();
    }
  };
  add(comparison.at("primary"));
  for (const char* list : {"guards", "exploratory"}) {
    for (const Json& finding : comparison.at(list)) add(finding);
  }
  add(comparison.at("control"));
  return out;
}

Json figures_of(const Json& finding) {
  Json out = Json::object();
  for (const char* key : {"metric", "figures_verdict", "figures_reason", "pairs", "effect_ratio", "interval",
                          "log_deviation", "delta_used"}) {
    out[key] = finding.at(key);
  }
  return out;
}

// What the figures of a comparison say with `floors`, whatever the machine's conditions allow.
Json outcome_of(const result::StoredRun& run, const Json& floors) {
  Json evidence = run.result.at("evidence");
  evidence["floors"] = floors;
  evidence["conditions"]["oversubscribed"] = false;
  const result::Judgement judgement = result::judge(evidence, run.samples);
  const Json& comparison = judgement.comparisons.at(0);
  Json guards = Json::array();
  for (const Json& guard : comparison.at("guards")) guards.push_back(figures_of(guard));
  return {{"experiment", std::filesystem::path(run.path).filename().string()},
          {"seed", evidence.at("seed")},
          {"verdict", comparison.at("verdict")},
          {"reason", comparison.at("reason")},
          {"broke_at", comparison.at("chain").at("broke_at")},
          {"primary", figures_of(comparison.at("primary"))},
          {"guards", guards}};
}

struct Series {
  std::string name;
  std::string stage;
  std::string expected_link;
  int experiments = 0;

  [[nodiscard]] std::string label(int number) const {
    return fmt::format("{}-{:03}", stage.empty() ? "aa" : stage, number);
  }
};

Json count(const Series& series, const std::string& output, const Json& floors) {
  std::map<std::string, int> verdicts;
  Json runs = Json::array();
  int found = 0;
  for (int e = 0; e < series.experiments; ++e) {
    Json one = outcome_of(result::read_run(output + "/" + series.label(e)), floors);
    ++verdicts[one["verdict"].is_null() ? "none" : one["verdict"].get<std::string>()];
    if (!series.stage.empty()) {
      one["found"] = one["verdict"] == "worse" && one["broke_at"] == series.expected_link;
      found += one["found"].get<bool>() ? 1 : 0;
    }
    runs.push_back(std::move(one));
  }
  const auto n = static_cast<double>(series.experiments);
  const auto times = [&](const char* verdict) { return verdicts.contains(verdict) ? verdicts.at(verdict) : 0; };
  // Of 40 experiments at most 2 claims and 4 voids; of fewer, the share rounded up.
  const bool quiet = times("better") + times("worse") <= std::ceil(kLargestFalseShare * n) &&
                     times("void") <= std::ceil(kLargestVoidShare * n);
  const bool passed = series.stage.empty() ? quiet : found >= kLeastFoundShare * n;
  Json out = {{"series", series.name}, {"experiments", series.experiments}, {"verdicts", verdicts}};
  if (!series.stage.empty()) {
    out["expected_link"] = series.expected_link;
    out["found"] = found;
  }
  out["passed"] = passed;
  out["runs"] = runs;
  return out;
}

// Runs the experiments of `all` that are not done, or the one that --only names. Errors: Error(usage) where --only
// names none.
void run_series(const std::vector<Series>& all, const plan::Plan& base, const std::string& output,
                const SelftestArguments& arguments, const Globals& globals, const std::string& state,
                const result::FloorKey& key) {
  const std::string source = source_folder(arguments);
  bool any = false;
  for (std::size_t s = 0; s < all.size(); ++s) {
    const Series& series = all[s];
    for (int e = 0; e < series.experiments; ++e) {
      if (!arguments.only.empty() && series.label(e) != arguments.only) continue;
      any = true;
      const std::uint64_t seed = base.base.seed + static_cast<std::uint64_t>(e) + 1000 * s;
      const plan::Plan plan = aa_plan(base, source, seed, series.stage, arguments.percent);
      const std::string folder = output + "/" + series.label(e);
      run_one(plan, folder, arguments, globals);
      if (s != 0) continue;
      const Json result = Json::parse(read_file(folder + "/result.json"));
      result::add_floor(state, key, plan.sha256 + " " + result.at("context").at("date").get<std::string>(),
                        log_ratios_of(result));
    }
  }
  if (any || arguments.only.empty()) return;
  fail(Exit::usage, "--only {}: the series has {} to {}{}", arguments.only, all.front().label(0),
       all.front().label(all.front().experiments - 1),
       all.size() == 1 ? "" : fmt::format(", and the same for lookup, front and gather below {}", all[1].experiments));
}

void print_series(const Json& document, const result::AaPairs& pooled) {
  fmt::print("{}: {} A/A pairs of this machine are on record; floors at {} pairs:\n",
             document["scenario"].get<std::string>(), document["aa_pairs_on_record"].get<std::size_t>(),
             document["pairs"].get<int>());
  for (const auto& [metric, floor] : document["floors_log"].items()) {
    if (floor.is_number()) fmt::print("  {}: {:.3f} %\n", metric, std::expm1(floor.get<double>()) * 100);
    if (!floor.is_number() && pooled.contains(metric))
      fmt::print("  {}: {}\n", metric, floor["reason"].get<std::string>());
  }
  for (const Json& one : document["series"]) {
    std::string verdicts;
    for (const auto& [verdict, n] : one["verdicts"].items()) {
      if (n != 0) verdicts += fmt::format(" {} {}", n.get<int>(), verdict);
    }
    fmt::print("{}: {} experiments:{}{}: {}\n", one["series"].get<std::string>(), one["experiments"].get<std::size_t>(),
               verdicts,
               one.contains("found") ? fmt::format("; found at link {}: {}", one["expected_link"].get<std::string>(),
                                                   one["found"].get<int>())
                                     : "",
               one["passed"] == true ? "as expected" : "NOT as expected");
  }
}

int run_selftest(const SelftestArguments& arguments, const Globals& globals) {
  const plan::Plan base = load_scenario(arguments.scenario, parse_settings(arguments.settings, arguments.seed));
  if (base.experiment.pairs < 2)
    fail(Exit::usage, "selftest: experiment.pairs is {}; pairs need two", base.experiment.pairs);
  const auto state = result::state_folder();
  if (!state) fail(Exit::usage, "none of ENGRAM_BENCH_STATE, XDG_STATE_HOME and HOME says where to keep A/A floors");
  const std::string output = arguments.output.empty() ? "results/selftest-" + base.base.name : arguments.output;
  if (std::filesystem::exists(output) && !arguments.resume) {
    fail(Exit::usage, "{} exists: go on with it with --resume, or choose another with -o", output);
  }
  std::vector<Series> all = {{"A/A", "", "", arguments.experiments}};
  if (arguments.injected > 0) {
    all.push_back({"lookup", "lookup", "mechanism", arguments.injected});
    all.push_back({"front", "front", "guards", arguments.injected});
    all.push_back({"gather", "gather", "guards", arguments.injected});
  }
  const auto obstacles = supervise::preflight(aa_plan(base, source_folder(arguments), base.base.seed, "", 0));
  if (!obstacles.empty()) return refuse_obstacles(obstacles);
  const result::FloorKey key = result::floor_key(base, placement::read_topology(placement::Devices::skip));
  std::filesystem::create_directories(output);
  run_series(all, base, output, arguments, globals, *state, key);
  if (!arguments.only.empty()) return static_cast<int>(Exit::ok);
  const result::AaPairs pooled = result::read_floor(*state, key);
  const Json floors = result::floors_section(base.experiment, pooled);
  Json series = Json::array();
  bool passed = true;
  for (const Series& one : all) {
    if (one.experiments == 0) continue;
    series.push_back(count(one, output, floors));
    passed = passed && series.back()["passed"].get<bool>();
  }
  const auto found = pooled.find(base.experiment.primary);
  const Json document = {{"scenario", base.base.name},
                         {"machine", key.machine},
                         {"fingerprint", key.fingerprint},
                         {"aa_pairs_on_record", found == pooled.end() ? 0 : found->second.size()},
                         {"pairs", base.experiment.pairs},
                         {"percent", arguments.percent},
                         {"floors_log", floors},
                         {"series", series},
                         {"passed", passed}};
  if (globals.json) {
    fmt::print("{}\n", result::dump(document));
  } else {
    print_series(document, pooled);
    fmt::print("Experiments: {}\n", output);
  }
  return static_cast<int>(passed ? Exit::ok : Exit::failure);
}

}  // namespace

void add_selftest(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command =
      app.add_subcommand("selftest", "Measure the A/A floor of this machine, and whether planted effects are found");
  auto arguments = std::make_shared<SelftestArguments>();
  command->add_option("SCENARIO", arguments->scenario, "Scenario whose first arm is compared with itself")
      ->capture_default_str();
  command->add_option("-o,--output", arguments->output, "Folder of the series [results/selftest-NAME]");
  add_settings(*command, arguments->settings, arguments->seed);
  command->add_option("--experiments", arguments->experiments, "A/A experiments")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  command
      ->add_option("--injected", arguments->injected, "Experiments with planted work in each of lookup, front, gather")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  command->add_option("--percent", arguments->percent, "Size of the planted work")
      ->check(CLI::Range(0.1, 1000.0))
      ->capture_default_str();
  command->add_option("--only", arguments->only,
                      "Run one experiment alone (aa-003, lookup-000) and judge nothing: for several at once, each on "
                      "CPUs of its own");
  command->add_flag("--resume", arguments->resume, "Go on with the series in the output folder");
  command
      ->add_option("--rank-timeout", arguments->rank_timeout_s, "Seconds without progress before a rank counts as hung")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command->callback(
      [arguments, &globals, &action] { action = [arguments, &globals] { return run_selftest(*arguments, globals); }; });
}

}  // namespace eb::cli
