// compare: verdicts of a stored run, or of one run against another.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "harness/base/error.h"
#include "harness/cli/archive_place.h"
#include "harness/cli/cli.h"
#include "harness/cli/tables.h"
#include "harness/result/stored.h"

namespace eb::cli {

namespace {

constexpr int kGatePairs = 6;  // fewer cannot reach 5 % in an exact sign test

struct CompareArguments {
  std::string run;
  std::string other;
  std::string baseline;
  std::string archive;
  std::string arm;
  std::string other_arm;
  std::string factor;
  std::vector<std::string> differ;
  bool gate = false;
};

std::string first_arm(const result::StoredRun& run, const std::string& wish) {
  if (!wish.empty()) return wish;
  const result::Json& arms = run.result.at("evidence").at("arms");
  if (arms.empty()) fail(Exit::usage, "{}: has no arm", run.path);
  return arms.front().get<std::string>();
}

result::Judgement judge(CompareArguments arguments, int& pairs) {
  if (!arguments.baseline.empty()) {
    if (!arguments.other.empty()) fail(Exit::usage, "compare: --baseline names the first run; leave OTHER out");
    arguments.other = std::exchange(arguments.run, arguments.baseline);
  }
  const RunPlace run_place(arguments.run, arguments.archive);
  const result::StoredRun run = result::read_run(run_place.folder());
  if (arguments.other.empty()) {
    pairs = run.result.at("evidence").at("planned_pairs").get<int>();
    const result::Judgement judgement = result::judge_again(run);
    if (judgement.comparisons.empty()) {
      fail(Exit::usage, "{}: one arm alone; name a second run to compare it with", arguments.run);
    }
    return judgement;
  }
  const RunPlace other_place(arguments.other, arguments.archive);
  const result::StoredRun other = result::read_run(other_place.folder());
  std::vector<std::string> declared = arguments.differ;
  if (!arguments.factor.empty()) declared.push_back(arguments.factor);
  const std::vector<result::Difference> found = result::differences(run, other, declared);
  if (!found.empty()) {
    std::string text = "the runs differ in more than the declared factor, so they are not compared:";
    for (const result::Difference& one : found) {
      text += fmt::format("\n  {}: {} in {}, {} in {}", one.what, one.left, arguments.run, one.right, arguments.other);
    }
    fail(Exit::usage, "{}\nname one as --factor, or further ones as --may-differ", text);
  }
  pairs = std::min(run.result.at("evidence").at("planned_pairs").get<int>(),
                   other.result.at("evidence").at("planned_pairs").get<int>());
  return result::judge_runs(run, first_arm(run, arguments.arm), other, first_arm(other, arguments.other_arm),
                            arguments.factor);
}

int run_compare(const CompareArguments& arguments, const Globals& globals) {
  int pairs = 0;
  const result::Judgement judgement = judge(arguments, pairs);
  if (arguments.gate && pairs < kGatePairs) {
    fail(Exit::usage, "--gate needs experiment.pairs of at least {}, found {}: fewer cannot reach 5 % in a sign test",
         kGatePairs, pairs);
  }
  const result::Json document = {
      {"comparisons", judgement.comparisons}, {"hypotheses", judgement.hypotheses}, {"gate_exit", judgement.gate_exit}};
  if (globals.json) {
    fmt::print("{}\n", result::dump(document));
  } else {
    fmt::print("{}", verdict_lines(document, globals.verbose > 0));
  }
  if (!arguments.gate) return static_cast<int>(Exit::ok);
  const char* words[] = {"gate: passed", "", "", "gate: regression", "gate: inconclusive or void"};
  fmt::print(stderr, "engram-bench: {}\n", words[judgement.gate_exit]);
  return judgement.gate_exit;
}

}  // namespace

void add_compare(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command = app.add_subcommand("compare", "Judge the arms of a stored run, or one run against another");
  auto arguments = std::make_shared<CompareArguments>();
  command->add_option("RUN", arguments->run, "Folder of a run, or archive:NAME; the baseline where two are named")
      ->required();
  command->add_option("OTHER", arguments->other, "A second run");
  command->add_option("--baseline", arguments->baseline,
                      "The run to compare RUN with: a folder, or archive:NAME (also archive:NAME@latest, archive:ID)");
  add_archive_option(*command, arguments->archive);
  command->add_option("--arm", arguments->arm, "Arm of RUN that is the baseline (two runs) [its first]");
  command->add_option("--other-arm", arguments->other_arm, "Arm of OTHER [its first]");
  command->add_option("--factor", arguments->factor,
                      "The one scenario key, or conditions.NAME, in which the two runs are meant to differ");
  command->add_option("--may-differ", arguments->differ, "A further key in which they may; may be given again")
      ->allow_extra_args(false);
  command->add_flag("--gate", arguments->gate, "Exit 3 for a regression, 4 where nothing is shown");
  command->callback(
      [arguments, &globals, &action] { action = [arguments, &globals] { return run_compare(*arguments, globals); }; });
}

}  // namespace eb::cli
