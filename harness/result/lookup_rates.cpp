#include "harness/result/lookup_rates.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace eb::result {

namespace {

using CellMap = std::map<std::pair<std::string, std::string>, const Json*>;  // by arm and metric

const Json* find(const CellMap& cells, const std::string& arm, const std::string& metric) {
  const auto found = cells.find({arm, metric});
  return found == cells.end() ? nullptr : found->second;
}

// Median of a rank; null where it has none.
Json of_rank(const Json* cell, int rank) {
  if (cell == nullptr) return nullptr;
  for (const Json& one : cell->at("per_rank")) {
    if (one.at("rank") == rank) return one.at("median");
  }
  return nullptr;
}

void add_rates(Json& entry, const Json& rate, const Json& bare) {
  entry["rows_per_s"] = rate;
  entry["bw_effective_rows_per_s"] = bare;
  entry["share_of_bw_effective"] = nullptr;
  if (bare.is_number() && bare.get<double>() > 0) {
    entry["share_of_bw_effective"] = rate.get<double>() / bare.get<double>();
    return;
  }
  const Json why = missing("experiment.bw_effective is off, or its windows were not read all through by every reader");
  entry["bw_effective_rows_per_s"] = why;
  entry["share_of_bw_effective"] = why;
}

// The layer of "rows_per_s.l14"; null for all tables together.
Json layer_of(const std::string& metric) {
  const std::size_t dot = metric.find(".l");
  return dot == std::string::npos ? Json(nullptr) : Json(std::stoi(metric.substr(dot + 2)));
}

Json rates_of_arm(const CellMap& cells, const std::string& arm, const std::vector<std::string>& metrics) {
  Json ranks = Json::array();
  for (const std::string& metric : metrics) {
    const Json* rates = find(cells, arm, metric);
    const Json* bare = find(cells, arm, "bare_" + metric);
    if (rates == nullptr) continue;
    for (const Json& one : rates->at("per_rank")) {
      if (!one.at("median").is_number()) continue;
      Json entry = {{"rank", one.at("rank")}, {"layer", layer_of(metric)}};
      add_rates(entry, one.at("median"), of_rank(bare, one.at("rank").get<int>()));
      ranks.push_back(std::move(entry));
    }
  }
  return ranks;
}

}  // namespace

Json lookup_rates(const Json& cells) {
  CellMap found;
  std::vector<std::string> arms;
  std::vector<std::string> metrics;  // rows_per_s, and of each layer
  for (const Json& cell : cells) {
    const auto arm = cell.at("arm").get<std::string>();
    const auto metric = cell.at("metric").get<std::string>();
    if (arms.empty() || arms.back() != arm) arms.push_back(arm);
    if (arms.size() == 1 && metric.starts_with("rows_per_s")) metrics.push_back(metric);
    found[{arm, metric}] = &cell;
  }
  Json list = Json::array();
  for (const std::string& arm : arms) {
    Json ranks = rates_of_arm(found, arm, metrics);
    if (ranks.empty()) continue;
    Json aggregate;
    const Json* together = find(found, arm, "aggregate_rows_per_s");
    const Json* bare = find(found, arm, "bare_aggregate_rows_per_s");
    if (together != nullptr && together->at("median").is_number()) {
      add_rates(aggregate, together->at("median"), bare == nullptr ? Json(nullptr) : bare->at("median"));
    } else {
      aggregate = missing(together == nullptr ? "not measured" : together->value("reason", "not measured"));
    }
    list.push_back({{"arm", arm}, {"per_rank", std::move(ranks)}, {"aggregate", std::move(aggregate)}});
  }
  return list;
}

}  // namespace eb::result
