// Samples by arm, metric, re-roll and block: what verdicts are made from, be it in a run or from its folder.
#pragma once

#include <cstdint>
#include <functional>
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
// One line of DIR/samples: of a replica's step, or with `rank` of one rank's.
struct SampleLine {
  std::string place;  // "DIR/samples/reroll-0-block-1.jsonl:12"
  int slot = 0;
  std::string arm;
  int reroll = 0;
  int block = 0;
  std::int64_t step = 0;
  int replica = 0;
  std::optional<int> rank;
  std::vector<std::pair<std::string, double>> values;  // by metric
};
// From the files in DIR/samples; `visit` is called for every line, in the order of the files' names and their lines.
// Errors: Error(bad_data) that names file and line of what is no sample, and those of `visit`.
[[nodiscard]] Samples read_samples(const std::string& path, const std::function<void(const SampleLine&)>& visit = {});

// "lookup_us.l1.p95" is metric lookup_us.l1 and statistic p95; without a statistic it is p50.
struct MetricName {
  std::string column;
  std::string statistic;
};
[[nodiscard]] MetricName split_metric(const std::string& name);
// Empty where `values` are too few for it.
[[nodiscard]] std::optional<double> statistic_of(std::vector<double> values, const std::string& statistic);

}  // namespace eb::result
