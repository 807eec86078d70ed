#include "harness/result/cells_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/stats/summary.h"
#include "harness/stats/tail.h"

namespace eb::result {

namespace {

struct Tail {
  const char* key;
  const char* text;
  double p;
};
constexpr Tail kTails[] = {{"p95", "p95", 0.95}, {"p99", "p99", 0.99}, {"p99_9", "p99.9", 0.999}};

}  // namespace

Json cell_statistics(std::vector<double> values, const std::string& absent) {
  Json cell;
  cell["n"] = values.size();
  if (values.empty()) {
    for (const char* key : {"median", "q1", "q3", "mad", "min", "max", "p95", "p99", "p99_9"}) cell[key] = nullptr;
    cell["reason"] = absent;
    return cell;
  }
  std::sort(values.begin(), values.end());
  const stats::Summary summary = stats::summarize(values);
  cell["median"] = summary.median;
  cell["q1"] = summary.q1;
  cell["q3"] = summary.q3;
  cell["mad"] = summary.mad;
  cell["min"] = summary.min;
  cell["max"] = summary.max;
  for (const Tail& tail : kTails) {
    const auto interval = stats::quantile_interval(values, tail.p);
    if (interval) {
      cell[tail.key] = {{"value", interval->value}, {"low", interval->low}, {"high", interval->high}};
    } else {
      cell[tail.key] = missing(
          fmt::format("{} needs {} samples, found {}", tail.text, stats::minimum_samples(tail.p), values.size()));
    }
  }
  return cell;
}

}  // namespace eb::result
