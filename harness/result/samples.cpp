#include "harness/result/samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/result/folder.h"
#include "harness/result/json_value.h"
#include "harness/stats/summary.h"
#include "harness/stats/tail.h"

namespace eb::result {

namespace {

constexpr const char* kPerRank = "lookup_us";

struct Statistic {
  const char* name;
  double p;  // below 0: not a quantile
  bool tail;
};
// A longer name before one that it ends with.
constexpr std::array kStatistics = {Statistic{"p99.9", 0.999, true}, Statistic{"p50", 0.5, false},
                                    Statistic{"q1", 0.25, false},    Statistic{"q3", 0.75, false},
                                    Statistic{"p95", 0.95, true},    Statistic{"p99", 0.99, true},
                                    Statistic{"min", 0, false},      Statistic{"mad", -1, false}};

}  // namespace

MetricName split_metric(const std::string& name) {
  for (const Statistic& one : kStatistics) {
    const std::string ending = std::string(".") + one.name;
    if (name.ends_with(ending)) return {name.substr(0, name.size() - ending.size()), one.name};
  }
  return {name, "p50"};
}

std::optional<double> statistic_of(std::vector<double> values, const std::string& statistic) {
  const auto found =
      std::find_if(kStatistics.begin(), kStatistics.end(), [&](const Statistic& one) { return statistic == one.name; });
  if (found == kStatistics.end()) fail(Exit::usage, "unknown statistic {}", statistic);
  if (values.empty()) return std::nullopt;
  if (found->p < 0) return stats::summarize(values).mad;
  if (found->tail && static_cast<std::int64_t>(values.size()) < stats::minimum_samples(found->p)) return std::nullopt;
  std::sort(values.begin(), values.end());
  return stats::quantile(values, found->p);
}

Samples samples_of(const measure::Cells& cells, const std::vector<std::string>& arms,
                   const std::vector<measure::Column>& columns) {
  Samples out;
  for (std::size_t a = 0; a < arms.size(); ++a) {
    cells.for_each(a, [&](int reroll, int block, const measure::StepValues& step) {
      for (std::size_t c = 0; c < columns.size(); ++c) {
        for (const auto& replica : step.per_replica) {
          if (!std::isnan(replica[c])) out.replicas[{arms[a], columns[c].name}][reroll][block].push_back(replica[c]);
        }
        if (columns[c].name != kPerRank) continue;
        for (std::size_t r = 0; r < step.per_rank.size(); ++r) {
          const double value = step.per_rank[r][c];
          if (std::isnan(value)) continue;
          out.ranks[{arms[a], columns[c].name, static_cast<int>(r)}][reroll][block].push_back(value);
        }
      }
    });
  }
  return out;
}

Samples read_samples(const std::string& path) {
  Samples out;
  for (const std::string& name : run_files(path)) {
    if (!name.starts_with("samples/")) continue;
    std::istringstream lines(read_file(path + "/" + name));
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
      const Json sample = Json::parse(line, nullptr, false);
      const auto wrong = [&] { fail(Exit::bad_data, "{}/{}:{}: not a sample", path, name, number); };
      if (!sample.is_object()) wrong();
      for (const char* key : {"arm", "reroll", "block", "rank", "values"}) {
        if (!sample.contains(key)) wrong();
      }
      try {
        const auto arm = sample["arm"].get<std::string>();
        const int reroll = sample["reroll"].get<int>();
        const int block = sample["block"].get<int>();
        for (const auto& [metric, value] : sample["values"].items()) {
          if (!value.is_number()) wrong();
          if (sample["rank"].is_null()) {
            out.replicas[{arm, metric}][reroll][block].push_back(value.get<double>());
          } else if (metric == kPerRank) {
            out.ranks[{arm, metric, sample["rank"].get<int>()}][reroll][block].push_back(value.get<double>());
          }
        }
      } catch (const Json::exception&) {
        wrong();
      }
    }
  }
  return out;
}

}  // namespace eb::result
