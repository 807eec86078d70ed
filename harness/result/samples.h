// Samples by arm, metric, re-roll and block: what verdicts are made from, be it in a run or from its folder.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/measure/cells.h"

namespace eb::result {

// Values of the steps of all replicas, in the order of the run.
using BlockValues = std::map<int, std::vector<double>>;  // by block
using RerollValues = std::map<int, BlockValues>;         // by re-roll

struct Samples {
  std::map<std::pair<std::string, std::string>, RerollValues> replicas;     // by arm and metric
  std::map<std::tuple<std::string, std::string, int>, RerollValues> ranks;  // by arm, metric and rank
};

// Of a run in memory. `arms`: names, in the order of the cells' arms. Ranks only for lookup_us.
[[nodiscard]] Samples samples_of(const measure::Cells& cells, const std::vector<std::string>& arms,
                                 const std::vector<measure::Column>& columns);
// From the files in DIR/samples. Errors: Error(bad_data) that names file and line of what is no sample.
[[nodiscard]] Samples read_samples(const std::string& path);

// "lookup_us.l1.p95" is metric lookup_us.l1 and statistic p95; without a statistic it is p50.
struct MetricName {
  std::string column;
  std::string statistic;
};
[[nodiscard]] MetricName split_metric(const std::string& name);
// Empty where `values` are too few for it.
[[nodiscard]] std::optional<double> statistic_of(std::vector<double> values, const std::string& statistic);

}  // namespace eb::result
