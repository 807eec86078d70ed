#include "harness/result/judgement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/result/cites.h"
#include "harness/result/grid_caps.h"
#include "harness/result/pair_figures.h"
#include "harness/stats/summary.h"

namespace eb::result {

namespace {

using evidence::Finding;

// Looked at beside what the scenario declares; never corrected for, never a claim.
constexpr const char* kExploratory[] = {"lookup_us.p50", "exposed_us.p50",    "front_us.p50",
                                        "gather_us.p50", "collective_us.p50", "step_us.p50"};
constexpr const char* kControl = "control_us.p50";

std::map<int, double> shares_of(const Json& json) {
  std::map<int, double> shares;
  if (!json.is_object() || json.contains("reason")) return shares;
  for (const auto& [node, share] : json.items()) shares[std::stoi(node)] = share.get<double>();
  return shares;
}

Json interval_json(const std::optional<stats::Interval>& interval) {
  if (!interval) return nullptr;
  return {{"low", interval->low}, {"high", interval->high}};
}

Json value_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

class Judge {
 public:
  Judge(const Json& evidence, const Samples& samples)
      : evidence_(evidence), samples_(samples), pairs_(evidence, samples) {
    const Json& conditions = evidence.at("conditions");
    conditions_.complete = conditions.at("complete").get<bool>();
    conditions_.checks_passed = conditions.at("checks_passed").get<bool>();
    conditions_.emulated_time = conditions.at("emulated_time").get<bool>();
    conditions_.time_sliced = conditions.at("time_sliced").get<bool>();
    conditions_.single_node = conditions.at("single_node").get<bool>();
    conditions_.traced = conditions.value("traced", false);  // results of older versions never are
    conditions_.oversubscribed = conditions.at("oversubscribed").get<bool>();
    for (const Json& arm : evidence.at("arms")) arms_.push_back(arm.get<std::string>());
    if (evidence.at("primary").is_string()) primary_ = evidence.at("primary").get<std::string>();
    for (const Json& guard : evidence.at("guards")) guards_.push_back(guard.get<std::string>());
  }

  Judgement run() {
    Judgement out;
    if (arms_.size() < 2 || primary_.empty()) return out;
    std::vector<Comparison> all;
    for (std::size_t i = 1; i < arms_.size(); ++i) all.push_back(figures(arms_[i]));
    std::vector<Finding*> together;
    for (Comparison& one : all) {
      together.push_back(&one.primary);
      for (Finding& guard : one.guards) together.push_back(&guard);
    }
    evidence::correct_together(together);
    bool regression = false;
    bool shown = true;
    for (Comparison& one : all) {
      const evidence::Comparison verdict = finish(one);
      const int exit = evidence::gate_exit(verdict);
      regression = regression || exit == 3;
      shown = shown && exit == 0;
      out.comparisons.push_back(comparison_json(one, verdict));
      for (Json& hypothesis : hypotheses(one, verdict)) out.hypotheses.push_back(std::move(hypothesis));
    }
    out.gate_exit = regression ? 3 : shown ? 0 : 4;
    out.grid_caps = grid_caps_json(evidence_, pairs_, conditions_);
    return out;
  }

 private:
  struct Comparison {
    std::string arm;
    Finding primary;
    std::vector<Finding> guards;
    std::vector<Finding> exploratory;
    std::optional<Finding> control;
  };

  Finding figure(const std::string& arm, const std::string& metric) const {
    return pairs_.judge(arms_.front(), arm, metric);
  }

  Comparison figures(const std::string& arm) const {
    Comparison out;
    out.arm = arm;
    out.primary = figure(arm, primary_);
    std::set<std::string> done = {primary_};
    for (const std::string& guard : guards_) {
      out.guards.push_back(figure(arm, guard));
      done.insert(guard);
    }
    for (const char* metric : kExploratory) {
      if (!done.contains(metric)) out.exploratory.push_back(figure(arm, metric));
    }
    Finding control = figure(arm, kControl);
    if (control.effect) out.control = std::move(control);
    return out;
  }

  std::vector<evidence::PageShares> pages_of(const std::string& arm) const {
    std::vector<evidence::PageShares> out;
    for (const Json& one : evidence_.at("pages").at("observed")) {
      if (one.at("arm") != arm) continue;
      evidence::PageShares shares;
      shares.pair = one.at("pair").get<int>();
      shares.shares = shares_of(one.at("shares"));
      shares.requested = shares_of(one.at("requested"));
      shares.rounding = one.value("rounding", 0.0);
      if (one.at("unqueryable_share").is_number()) shares.unqueryable_share = one.at("unqueryable_share").get<double>();
      if (shares.shares.empty()) shares.unknown = one.at("shares").value("reason", "no page was seen");
      out.push_back(std::move(shares));
    }
    return out;
  }

  evidence::Comparison finish(Comparison& one) const {
    const Finding* control = one.control ? &*one.control : nullptr;
    std::vector<Finding*> findings = {&one.primary};
    for (Finding& guard : one.guards) findings.push_back(&guard);
    for (Finding& other : one.exploratory) findings.push_back(&other);
    for (Finding* finding : findings) evidence::apply_conditions(*finding, conditions_, control);
    const Json& pages = evidence_.at("pages");
    evidence::PagesInput input;
    input.claim = pages.at("claim") == "move" ? evidence::PageClaim::move : evidence::PageClaim::same;
    input.one_allocation = pages.at("one_allocation").get<bool>();
    input.tolerance = pages.at("tolerance").get<double>();
    input.a = pages_of(arms_.front());
    input.b = pages_of(one.arm);
    evidence::ChainInput chain;
    chain.pages = evidence::judge_pages(input);
    if (conditions_.single_node) {
      chain.pages.status = evidence::LinkStatus::void_;
      chain.pages.text = "this machine cannot tell the arms apart: " + chain.pages.text;
    }
    chain.primary = one.primary;
    chain.guards = one.guards;
    chain.links_after_pages_void = conditions_.emulated_time;
    return evidence::judge_chain(chain);
  }

  Json comparison_json(const Comparison& one, const evidence::Comparison& verdict) const {
    const bool none = verdict.verdict == evidence::Verdict::none;
    Json links = Json::array();
    for (const evidence::LinkFinding& link : verdict.links) {
      links.push_back({{"link", evidence::name(link.link)},
                       {"status", evidence::name(link.status)},
                       {"claimed", link.claimed},
                       {"text", link.text}});
    }
    const auto list = [](const std::vector<Finding>& findings) {
      Json out = Json::array();
      for (const Finding& finding : findings) out.push_back(finding_json(finding));
      return out;
    };
    // The way the console has always said it.
    std::string text = verdict.text;
    const Json changes = changes_of(one.arm);
    if (none && verdict.reason == evidence::Reason::one_reroll) text = "no verdict: one re-roll";
    if (changes.size() > 1) {
      text += fmt::format(". This arm changes {} together: the difference is that of both, not of either",
                          fmt::join(changes.get<std::vector<std::string>>(), " and "));
    }
    Json out = {
        {"factor", evidence_.at("factor")},
        {"arms", {arms_.front(), one.arm}},
        {"metric", primary_},
        {"pairs", evidence_.at("planned_pairs")},
        {"delta", pairs_.rules().delta},
        {"verdict", none ? Json(nullptr) : Json(evidence::name(verdict.verdict))},
        {"reason", evidence::name(verdict.reason)},
        {"text", text},
        {"gate_exit", evidence::gate_exit(verdict)},
        {"chain",
         {{"broke_at", verdict.broke_at ? Json(evidence::name(*verdict.broke_at)) : Json(nullptr)}, {"links", links}}},
        {"primary", finding_json(one.primary)},
        {"guards", list(one.guards)},
        {"exploratory", list(one.exploratory)},
        {"control", one.control ? finding_json(*one.control) : missing("this run recorded no negative control")},
        {"within_device", within_device(one.arm)},
        {"advice", advice()}};
    // Results from before such arms say nothing of them, and are derived as they were.
    if (evidence_.contains("joint_arms")) out["changes"] = changes;
    return out;
  }

  // Keys that the arm changes against the baseline: the factor, or those of a joint arm.
  Json changes_of(const std::string& arm) const {
    const Json joint = evidence_.value("joint_arms", Json::object());
    if (joint.contains(arm)) return joint.at(arm);
    return evidence_.at("factor").is_string() ? Json::array({evidence_.at("factor")}) : Json::array();
  }

  Json advice() const {
    const Json& factor = evidence_.at("factor");
    const CitedGround ground = ground_of(evidence_.value("cites", Json::array()));
    const std::string text =
        evidence::copies_advice(factor.is_string() ? factor.get<std::string>() : "", ground.a1, ground.b1);
    return text.empty() ? Json(nullptr) : Json(text);
  }

  // Far over near of each rank whose pages changed sides.
  Json within_device(const std::string& arm) const {
    std::vector<evidence::RankLookup> ranks;
    for (const Json& one : evidence_.at("pages").at("ranks")) {
      evidence::RankLookup rank;
      rank.rank = one.at("rank").get<int>();
      rank.a = locality_of(one, arms_.front());
      rank.b = locality_of(one, arm);
      const auto of = [&](const std::string& name) -> const RerollValues* {
        const auto found = samples_.ranks.find({name, "lookup_us", rank.rank});
        return found == samples_.ranks.end() ? nullptr : &found->second;
      };
      bool enough = true;
      for (const evidence::Pair& pair : pairs_.pairs(arms_.front(), of(arms_.front()), arm, of(arm), "p50", enough)) {
        rank.log_b_over_a.push_back(stats::pair_log_ratio(pair.blocks));
      }
      ranks.push_back(std::move(rank));
    }
    Json out = Json::array();
    for (const evidence::RankRatio& one : evidence::within_device_ratios(ranks)) {
      out.push_back({{"rank", one.rank},
                     {"far_over_near_ratio", value_or_null(one.ratio)},
                     {"interval", interval_json(one.interval)},
                     {"pairs", one.log_ratios.size()}});
    }
    return out;
  }

  static evidence::Locality locality_of(const Json& rank, const std::string& arm) {
    const Json& labels = rank.at("locality");
    const std::string label = labels.value(arm, "unknown");
    for (const auto one : {evidence::Locality::near, evidence::Locality::far, evidence::Locality::mixed}) {
      if (label == evidence::name(one)) return one;
    }
    return evidence::Locality::unknown;
  }

  std::optional<double> pooled_median(const std::string& arm, const std::string& column) const {
    const RerollValues* values = pairs_.values_of(arm, column);
    if (values == nullptr) return std::nullopt;
    std::vector<double> all;
    for (const auto& [reroll, blocks] : *values) {
      for (const auto& [block, list] : blocks) all.insert(all.end(), list.begin(), list.end());
    }
    return all.empty() ? std::nullopt : std::optional(stats::median(all));
  }

  // Counted bytes a step of the baseline and of `arm`; results of before the counters have no such part.
  evidence::Traffic traffic(const std::string& arm, const char* what) const {
    evidence::Traffic out;
    const auto counters = evidence_.find("counters");
    if (counters == evidence_.end()) return out;
    const Json& by_arm = counters->at(what);
    const auto of = [&](const std::string& name) -> std::optional<double> {
      const Json value = by_arm.value(name, missing("the arm was not observed"));
      if (value.is_number()) return value.get<double>();
      out.reason = value.at("reason").get<std::string>();
      return std::nullopt;
    };
    out.arm_bytes = of(arm);
    out.baseline_bytes = of(arms_.front());
    return out;
  }

  std::vector<Json> hypotheses(const Comparison& one, const evidence::Comparison& verdict) const {
    evidence::HypothesisInput input;
    if (evidence_.at("factor").is_string()) input.factor = evidence_.at("factor").get<std::string>();
    input.pages = verdict.links.front().status;
    std::vector<const Finding*> findings = {&one.primary};
    for (const Finding& guard : one.guards) findings.push_back(&guard);
    for (const Finding& other : one.exploratory) findings.push_back(&other);
    for (const Finding* finding : findings) {
      const MetricName name = split_metric(finding->metric);
      if (name.statistic == "p50") input.findings[name.column] = *finding;
    }
    input.cross_socket = traffic(one.arm, "cross_socket_bytes");
    input.host = traffic(one.arm, "host_bytes");
    const Json& early = evidence_.at("early_arms");
    const auto submits_early = [&](const std::string& arm) {
      return std::any_of(early.begin(), early.end(), [&](const Json& name) { return name == arm; });
    };
    input.arm_is_early = submits_early(one.arm);
    const std::string early_arm = submits_early(arms_.front()) ? arms_.front() : input.arm_is_early ? one.arm : "";
    if (!early_arm.empty()) {
      input.first_layer = evidence_.at("first_layer").get<int>();
      input.first_exposed_us = pooled_median(early_arm, fmt::format("exposed_us.l{}", input.first_layer));
      input.first_recoverable_us = pooled_median(early_arm, fmt::format("recoverable_us.l{}", input.first_layer));
    }
    std::vector<Json> out;
    for (const evidence::Hypothesis& h : evidence::judge_hypotheses(input)) {
      out.push_back({{"id", h.id},
                     {"statement", h.statement},
                     {"arms", {arms_.front(), one.arm}},
                     {"standing", evidence::name(h.standing)},
                     {"why", h.why},
                     {"figures", h.figures}});
    }
    return out;
  }

  const Json& evidence_;
  const Samples& samples_;
  PairFigures pairs_;
  evidence::Conditions conditions_;
  std::vector<std::string> arms_;
  std::string primary_;
  std::vector<std::string> guards_;
};

}  // namespace

Json finding_json(const Finding& finding) {
  const auto verdict = [](evidence::Verdict one) {
    return one == evidence::Verdict::none ? Json(nullptr) : Json(evidence::name(one));
  };
  Json clusters = nullptr;
  if (finding.clusters && finding.clusters->found()) {
    clusters = {{"lower_pairs", finding.clusters->lower},
                {"upper_pairs", finding.clusters->upper},
                {"lower_ratio", std::exp(finding.clusters->lower_mean)},
                {"upper_ratio", std::exp(finding.clusters->upper_mean)},
                {"p", finding.clusters->p}};
  }
  const bool judged = finding.effect.has_value();
  Json json = {{"metric", finding.metric},
               {"verdict", verdict(finding.verdict)},
               {"reason", evidence::name(finding.reason)},
               {"figures_verdict", verdict(finding.figures_verdict)},
               {"figures_reason", evidence::name(finding.figures_reason)},
               {"pairs", finding.pairs},
               {"dropped_pairs", finding.dropped},
               {"effect_ratio", value_or_null(finding.effect)},
               {"interval", interval_json(finding.interval)},
               {"bootstrap", interval_json(finding.bootstrap)},
               {"log_deviation", judged ? Json(finding.deviation) : Json(nullptr)},
               {"smallest_detectable_change", judged ? Json(std::expm1(finding.detectable)) : Json(nullptr)},
               {"sign_test_p", judged ? Json(finding.sign_p) : Json(nullptr)},
               {"t_test_p", judged ? Json(finding.p) : Json(nullptr)},
               {"holm_p", judged ? Json(finding.holm_p) : Json(nullptr)},
               {"floor_log", value_or_null(finding.floor)},
               {"delta_used", finding.delta},
               {"delta_raised_to_floor", finding.delta_raised},
               {"log_ratios", finding.log_ratios},
               {"two_clusters", clusters},
               {"text", evidence::finding_text(finding)}};
  // Only where it is so: a result of before the rule is derived as it was written.
  if (finding.of_step) json["judged"] = "of_step";
  return json;
}

Judgement judge(const Json& evidence, const Samples& samples) { return Judge(evidence, samples).run(); }

}  // namespace eb::result
