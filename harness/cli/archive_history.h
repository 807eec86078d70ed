// One metric over the runs of an archive, from the oldest on.
#pragma once

#include <string>

#include "harness/result/archive.h"

namespace eb::cli {

struct HistoryQuery {
  std::string metric;  // as in experiment.primary: lookup_us.l1.p95; without a statistic p50
  std::string name;    // of the runs; empty: all
  std::string arm;     // empty: all
};

// {metric, runs: [{id, name, date, commit, binary_sha256, plan_sha256, arm, n, value, q1, q3, change_ratio}]}; a value
// that a run does not have is null with its reason, and so is a change where the run before it cannot be compared:
// another plan or another machine. Errors: Error(usage) for a metric that does not exist.
[[nodiscard]] result::Json history(const result::Archive& archive, const HistoryQuery& query);
[[nodiscard]] std::string history_table(const result::Json& document);

}  // namespace eb::cli
