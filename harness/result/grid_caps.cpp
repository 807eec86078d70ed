#include "harness/result/grid_caps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "harness/result/judgement.h"
#include "harness/stats/summary.h"

namespace eb::result {

namespace {

using evidence::Finding;

struct CapRow {
  std::string arm;
  std::int64_t programs = 0;
  std::int64_t tiles = 0;  // of the largest lookup
  Json json;
  std::optional<stats::MeanInterval> exposed;  // share of the step
  std::optional<Finding> front;                // against the smallest cap; empty for that one
};

Json median_json(const PairFigures& figures, const std::string& arm, const char* column) {
  const RerollValues* values = figures.values_of(arm, column);
  std::vector<double> all;
  if (values != nullptr) {
    for (const auto& [reroll, blocks] : *values) {
      for (const auto& [block, list] : blocks) all.insert(all.end(), list.begin(), list.end());
    }
  }
  return all.empty() ? missing("the arm has no sample of it") : Json(stats::median(all));
}

std::string percent(double share) { return fmt::format("{:.2f} %", share * 100); }

// What forbids a statement on times, whatever the figures say; empty: nothing.
std::string forbidden(const evidence::Conditions& conditions) {
  using evidence::Reason;
  const auto code = [](Reason reason) { return std::string(evidence::name(reason)); };
  if (!conditions.checks_passed) return code(Reason::check_failed);
  if (!conditions.complete) return code(Reason::not_complete);
  if (conditions.emulated_time) return code(Reason::emulated_time);
  if (conditions.time_sliced) return code(Reason::time_sliced);
  if (conditions.oversubscribed) return code(Reason::oversubscribed);
  return "";
}

class CapTable {
 public:
  CapTable(const PairFigures& figures, const evidence::Conditions& conditions)
      : figures_(figures), conditions_(conditions), bound_(figures.rules().delta) {}

  Json make(const Json& inputs) {
    for (const Json& input : inputs) {
      CapRow row;
      row.arm = input.at("arm").get<std::string>();
      row.programs = input.at("cap_programs").get<std::int64_t>();
      row.tiles = input.at("tiles_max").get<std::int64_t>();
      row.json = input;
      rows_.push_back(std::move(row));
    }
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const CapRow& a, const CapRow& b) { return a.programs < b.programs; });
    for (CapRow& row : rows_) fill(row);
    const bool reached =
        std::any_of(rows_.begin(), rows_.end(), [](const CapRow& row) { return row.tiles >= row.programs; });
    Json table = Json::array();
    for (const CapRow& row : rows_) table.push_back(row.json);
    const Json hidden = hidden_from();
    const Json slows = slows_from(reached);
    return {{"bound_step_share", bound_},
            {"front_reference_arm", rows_.empty() ? Json(nullptr) : Json(rows_.front().arm)},
            {"tiles_reached_a_cap", reached},
            {"caps", table},
            {"hidden_from", hidden},
            {"front_slows_from", slows},
            {"text", text(reached, hidden, slows)}};
  }

 private:
  void fill(CapRow& row) {
    for (const char* column : {"lookup_us", "exposed_us", "front_us", "step_us"}) {
      row.json[fmt::format("{}_median", column)] = median_json(figures_, row.arm, column);
    }
    row.json["cap_reached"] = row.tiles >= row.programs;
    const std::vector<double> shares = figures_.step_shares(row.arm, "exposed_us");
    row.json["exposed_step_share"] = missing("an interval needs two pairs");
    row.json["hidden"] = nullptr;
    if (shares.size() >= 2) {
      row.exposed = stats::t_interval(shares);
      row.json["exposed_step_share"] = {{"mean", row.exposed->mean},
                                        {"low", row.exposed->interval.low},
                                        {"high", row.exposed->interval.high},
                                        {"pairs", row.exposed->n}};
      if (forbidden(conditions_).empty()) row.json["hidden"] = row.exposed->interval.high <= bound_;
    }
    row.json["front_against_smallest"] = nullptr;
    if (row.arm == rows_.front().arm) return;
    row.front = figures_.judge(rows_.front().arm, row.arm, "front_us.p50");
    const Finding control = figures_.judge(rows_.front().arm, row.arm, "control_us.p50");
    evidence::apply_conditions(*row.front, conditions_, control.effect ? &control : nullptr);
    row.json["front_against_smallest"] = finding_json(*row.front);
  }

  Json hidden_from() const {
    if (const std::string reason = forbidden(conditions_); !reason.empty()) return missing(reason);
    bool judged = false;
    for (const CapRow& row : rows_) {
      judged = judged || row.exposed.has_value();
      if (row.exposed && row.exposed->interval.high <= bound_) return place(row);
    }
    if (!judged) return missing("one_reroll: an interval needs two pairs");
    return missing(fmt::format("at no cap is the exposed wait within {} of the step", percent(bound_)));
  }

  Json slows_from(bool reached) const {
    if (!reached) return missing("tiles never reached a cap");
    bool undecided = false;
    std::string why;
    for (const CapRow& row : rows_) {
      if (!row.front) continue;
      if (row.front->verdict == evidence::Verdict::worse) return place(row);
      const bool decided =
          row.front->verdict == evidence::Verdict::same || row.front->verdict == evidence::Verdict::better;
      if (!decided && !undecided) why = fmt::format("arm {}: {}", row.arm, evidence::name(row.front->reason));
      undecided = undecided || !decided;
    }
    if (undecided) return missing("not decided: " + why);
    return missing(fmt::format("at no cap do the front layers slow down by more than {}", percent(bound_)));
  }

  static Json place(const CapRow& row) { return {{"arm", row.arm}, {"cap_programs", row.programs}}; }

  std::string text(bool reached, const Json& hidden, const Json& slows) const {
    std::string out;
    if (!reached) {
      std::int64_t most = 0;
      for (const CapRow& row : rows_) most = std::max(most, row.tiles);
      out = fmt::format(
          "Tiles never reached the cap: the largest lookup has {} tiles, the smallest cap is {} programs, so all caps "
          "ran the same grid. ",
          most, rows_.empty() ? 0 : rows_.front().programs);
    }
    if (hidden.contains("reason")) {
      out += fmt::format("No cap is named whose lookup is hidden: {}.", hidden["reason"].get<std::string>());
    } else {
      out += fmt::format("The smallest cap whose lookup is hidden (exposed wait at most {} of the step) is {}, arm {}.",
                         percent(bound_), hidden["cap_programs"].get<std::int64_t>(), hidden["arm"].get<std::string>());
    }
    if (slows.contains("reason")) {
      out += fmt::format(" No cap is named from which the front layers slow down: {}.",
                         slows["reason"].get<std::string>());
    } else {
      out +=
          fmt::format(" From cap {}, arm {}, on the front layers slow down by more than {} against the smallest cap.",
                      slows["cap_programs"].get<std::int64_t>(), slows["arm"].get<std::string>(), percent(bound_));
    }
    return out;
  }

  const PairFigures& figures_;
  const evidence::Conditions& conditions_;
  double bound_;
  std::vector<CapRow> rows_;
};

}  // namespace

Json grid_caps_json(const Json& evidence, const PairFigures& figures, const evidence::Conditions& conditions) {
  const auto inputs = evidence.find("grid_caps");
  if (inputs == evidence.end() || !inputs->is_array()) return nullptr;
  return CapTable(figures, conditions).make(*inputs);
}

}  // namespace eb::result
