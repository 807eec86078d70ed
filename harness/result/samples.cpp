#include "harness/result/samples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <stdexcept>

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

namespace {

// Errors: nlohmann's exceptions for what is no sample.
SampleLine parse_line(const std::string& text) {
  const Json json = Json::parse(text);
  SampleLine line;
  line.slot = json.at("slot").get<int>();
  line.arm = json.at("arm").get<std::string>();
  line.reroll = json.at("reroll").get<int>();
  line.block = json.at("block").get<int>();
  line.step = json.at("step").get<std::int64_t>();
  line.replica = json.at("replica").get<int>();
  if (!json.at("rank").is_null()) line.rank = json.at("rank").get<int>();
  for (const auto& [metric, value] : json.at("values").items()) {
    if (!value.is_number()) throw std::invalid_argument("no number");
    line.values.emplace_back(metric, value.get<double>());
  }
  return line;
}

void take(Samples& out, const SampleLine& line) {
  for (const auto& [metric, value] : line.values) {
    if (!line.rank) {
      out.replicas[{line.arm, metric}][line.reroll][line.block].push_back(value);
    } else if (metric == kPerRank) {
      out.ranks[{line.arm, metric, *line.rank}][line.reroll][line.block].push_back(value);
    }
  }
}

}  // namespace

Samples read_samples(const std::string& path, const std::function<void(const SampleLine&)>& visit) {
  Samples out;
  for (const std::string& name : run_files(path)) {
    if (!name.starts_with("samples/")) continue;
    std::istringstream lines(read_file(path + "/" + name));
    std::string text;
    for (int number = 1; std::getline(lines, text); ++number) {
      SampleLine line;
      try {
        line = parse_line(text);
      } catch (const std::exception&) {
        fail(Exit::bad_data, "{}/{}:{}: not a sample", path, name, number);
      }
      line.place = fmt::format("{}/{}:{}", path, name, number);
      take(out, line);
      if (visit) visit(line);
    }
  }
  return out;
}

}  // namespace eb::result
