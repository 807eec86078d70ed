// Runs read back from their folders: verdicts anew, and two runs beside each other.
#pragma once

#include <string>
#include <vector>

#include "harness/result/judgement.h"

namespace eb::result {

// A folder that verify() has accepted.
struct StoredRun {
  std::string path;
  Json result;
  Json plan;  // the expanded scenario
  Samples samples;
};
// Errors: those of verify().
[[nodiscard]] StoredRun read_run(const std::string& path);

// The run's own arms, with the floors on record now where the run had none.
[[nodiscard]] Judgement judge_again(const StoredRun& run);

// A difference between the fixed conditions of two runs.
struct Difference {
  std::string what;  // a scenario key, or conditions.NAME
  std::string left;
  std::string right;
};
// All but those in `declared`, which names scenario keys and conditions. Names, texts, experiment keys and the state of
// the machine at one moment are no fixed conditions.
[[nodiscard]] std::vector<Difference> differences(const StoredRun& left, const StoredRun& right,
                                                  const std::vector<std::string>& declared);

// One arm of each run: `left` is the baseline. The re-rolls of the two have no partner: they are paired in their order.
// Errors: Error(usage) for an arm that a run does not have, or a baseline with planted extra work.
[[nodiscard]] Judgement judge_runs(const StoredRun& left, const std::string& left_arm, const StoredRun& right,
                                   const std::string& right_arm, const std::string& factor);

}  // namespace eb::result
