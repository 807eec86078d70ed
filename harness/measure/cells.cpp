#include "harness/measure/cells.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace eb::measure {

namespace {
void take(std::vector<double>& out, double value) {
  if (!std::isnan(value)) out.push_back(value);
}
}  // namespace

Cells::Cells(std::size_t arms) : arms_(arms) {}

void Cells::add(std::size_t arm, int reroll, int block, const StepValues& values) {
  arms_.at(arm).push_back({reroll, block, values});
}

std::vector<std::size_t> Cells::counts() const {
  std::vector<std::size_t> out;
  for (const std::vector<Step>& steps : arms_) out.push_back(steps.size());
  return out;
}

void Cells::drop_behind(const std::vector<std::size_t>& counts) {
  for (std::size_t a = 0; a < arms_.size(); ++a) {
    arms_[a].resize(std::min(arms_[a].size(), a < counts.size() ? counts[a] : 0));
  }
}

std::vector<double> Cells::pooled(std::size_t arm, std::size_t column) const {
  std::vector<double> out;
  for (const Step& step : arms_.at(arm)) {
    for (const auto& replica : step.values.per_replica) take(out, replica[column]);
  }
  return out;
}

std::vector<double> Cells::of_replica(std::size_t arm, std::size_t column, std::size_t replica) const {
  std::vector<double> out;
  for (const Step& step : arms_.at(arm)) take(out, step.values.per_replica[replica][column]);
  return out;
}

std::vector<double> Cells::of_rank(std::size_t arm, std::size_t column, std::size_t rank) const {
  std::vector<double> out;
  for (const Step& step : arms_.at(arm)) take(out, step.values.per_rank[rank][column]);
  return out;
}

std::vector<BlockMedian> Cells::blocks(std::size_t arm, std::size_t column) const {
  std::vector<BlockMedian> out;
  std::vector<double> values;
  const auto close = [&](int reroll, int block) {
    if (!values.empty()) out.push_back({reroll, block, stats::summarize(values)});
    values.clear();
  };
  const std::vector<Step>& steps = arms_.at(arm);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const auto& replica : steps[i].values.per_replica) take(values, replica[column]);
    const bool last =
        i + 1 == steps.size() || steps[i + 1].block != steps[i].block || steps[i + 1].reroll != steps[i].reroll;
    if (last) close(steps[i].reroll, steps[i].block);
  }
  return out;
}

std::optional<stats::Summary> Cells::summary(std::size_t arm, std::size_t column) const {
  const std::vector<double> values = pooled(arm, column);
  if (values.empty()) return std::nullopt;
  return stats::summarize(values);
}

}  // namespace eb::measure
