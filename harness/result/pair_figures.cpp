#include "harness/result/pair_figures.h"

#include <algorithm>

#include "harness/measure/metrics.h"
#include "harness/stats/summary.h"

namespace eb::result {

namespace {

constexpr const char* kStep = "step_us";

std::map<int, double> block_figures(const RerollValues* values, int reroll, const std::string& statistic,
                                    bool& enough) {
  std::map<int, double> out;
  if (values == nullptr || !values->contains(reroll)) return out;
  for (const auto& [block, list] : values->at(reroll)) {
    const std::optional<double> figure = statistic_of(list, statistic);
    enough = enough && figure.has_value();
    if (figure) out[block] = *figure;
  }
  return out;
}

std::optional<double> median_of(const std::map<int, double>& figures) {
  if (figures.empty()) return std::nullopt;
  std::vector<double> values;
  for (const auto& [block, value] : figures) values.push_back(value);
  return stats::median(values);
}

}  // namespace

PairFigures::PairFigures(const Json& evidence, const Samples& samples) : evidence_(evidence), samples_(samples) {
  rules_.delta = evidence.at("delta").get<double>();
  rules_.seed = evidence.at("seed").get<std::uint64_t>();
  rules_.method = evidence.value("method", 1);  // results of before method 2 do not name theirs
}

// Results of before the rule have no such list: there every metric has its ratio.
bool PairFigures::is_wait(const std::string& column) const {
  const auto list = evidence_.find("judged_of_step");
  if (list == evidence_.end()) return false;
  const std::string family = column.substr(0, column.find('.'));
  return std::any_of(list->begin(), list->end(), [&](const Json& name) { return name == family; });
}

std::string PairFigures::gate_of(int pair) const {
  for (const Json& gate : evidence_.at("failed_gates")) {
    if (gate.at("pair").get<int>() == pair) return gate.at("text").get<std::string>();
  }
  return "";
}

std::vector<evidence::Pair> PairFigures::pairs(const std::string& arm_a, const RerollValues* a,
                                               const std::string& arm_b, const RerollValues* b,
                                               const std::string& statistic, bool& enough) const {
  std::vector<evidence::Pair> pairs;
  for (const Json& entry : evidence_.at("pairs")) {
    const Json& rerolls = entry.at("rerolls");
    if (!rerolls.contains(arm_a) || !rerolls.contains(arm_b)) continue;
    const int first = rerolls.at(arm_a).get<int>();
    const int second = rerolls.at(arm_b).get<int>();
    const std::map<int, double> left = block_figures(a, first, statistic, enough);
    const std::map<int, double> right = block_figures(b, second, statistic, enough);
    evidence::Pair pair;
    pair.pair = entry.at("pair").get<int>();
    pair.gate = gate_of(pair.pair);
    pair.blocks.matched = first == second;
    for (const auto& [block, value] : left) {
      if (pair.blocks.matched && !right.contains(block)) continue;
      pair.blocks.a.push_back(value);
    }
    for (const auto& [block, value] : right) {
      if (pair.blocks.matched && !left.contains(block)) continue;
      pair.blocks.b.push_back(value);
    }
    if (!pair.blocks.a.empty() && !pair.blocks.b.empty()) pairs.push_back(std::move(pair));
  }
  return pairs;
}

const RerollValues* PairFigures::values_of(const std::string& arm, const std::string& column) const {
  const auto found = samples_.replicas.find({arm, column});
  return found == samples_.replicas.end() ? nullptr : &found->second;
}

// To both sides of a pair the rest of the baseline's step is added: what is compared is then the baseline's step with
// each arm's wait in it. A step that the wait fills up has no rest, and the figure stays without a ratio.
void PairFigures::put_on_step(std::vector<evidence::Pair>& pairs, const std::string& baseline,
                              const std::string& column, const std::string& statistic) const {
  const std::string of_step = statistic == "mad" ? "p50" : statistic;
  for (evidence::Pair& pair : pairs) {
    const Json& entry = *std::find_if(evidence_.at("pairs").begin(), evidence_.at("pairs").end(),
                                      [&](const Json& one) { return one.at("pair").get<int>() == pair.pair; });
    const int reroll = entry.at("rerolls").at(baseline).get<int>();
    bool enough = true;
    const auto step = median_of(block_figures(values_of(baseline, kStep), reroll, of_step, enough));
    const auto wait = median_of(block_figures(values_of(baseline, column), reroll, statistic, enough));
    const double rest = step && wait ? *step - *wait : 0;
    if (!(rest > 0)) {
      std::fill(pair.blocks.a.begin(), pair.blocks.a.end(), 0.0);
      continue;
    }
    for (auto* side : {&pair.blocks.a, &pair.blocks.b}) {
      for (double& value : *side) value += rest;
    }
  }
}

evidence::Finding PairFigures::judge(const std::string& baseline, const std::string& arm,
                                     const std::string& metric) const {
  const MetricName name = split_metric(metric);
  evidence::Cell cell;
  cell.metric = metric;
  cell.lower_is_better = !measure::higher_is_better(metric);
  bool enough = true;
  cell.pairs =
      pairs(baseline, values_of(baseline, name.column), arm, values_of(arm, name.column), name.statistic, enough);
  if (!enough) {
    cell.pairs.clear();
    cell.absent = evidence::Reason::too_few_samples;
  }
  cell.of_step = is_wait(name.column);
  if (cell.of_step) put_on_step(cell.pairs, baseline, name.column, name.statistic);
  const Json& floors = evidence_.at("floors");
  if (floors.contains(metric) && floors.at(metric).is_number()) cell.floor = floors.at(metric).get<double>();
  return evidence::judge_figures(cell, rules_);
}

std::vector<double> PairFigures::step_shares(const std::string& arm, const std::string& column) const {
  std::vector<double> shares;
  for (const Json& entry : evidence_.at("pairs")) {
    if (!entry.at("rerolls").contains(arm) || !gate_of(entry.at("pair").get<int>()).empty()) continue;
    const int reroll = entry.at("rerolls").at(arm).get<int>();
    bool enough = true;
    const auto wait = median_of(block_figures(values_of(arm, column), reroll, "p50", enough));
    const auto step = median_of(block_figures(values_of(arm, kStep), reroll, "p50", enough));
    if (wait && step && *step > 0) shares.push_back(*wait / *step);
  }
  return shares;
}

}  // namespace eb::result
