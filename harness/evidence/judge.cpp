#include "harness/evidence/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/stats/distributions.h"

namespace eb::evidence {

namespace {

constexpr double kAlpha = 0.05;
constexpr double kLargestDropped = 0.1;

double percent(double ratio) { return (ratio - 1) * 100; }

void decide(Finding& finding, Verdict verdict, Reason reason) {
  finding.verdict = finding.figures_verdict = verdict;
  finding.reason = finding.figures_reason = reason;
}

struct Statement {
  Verdict verdict = Verdict::none;
  Reason reason = Reason::no_samples;
};

// What a mean and an interval around it support at `delta`. Both are in logs; delta is a relative change, and its two
// sides are log(1 + delta) up and down, so that B/A and A/B are judged alike.
Statement statement_of(double mean, const stats::Interval& interval, double delta, bool lower_is_better) {
  const double edge = std::log1p(delta);
  const bool clear = interval.low > 0 || interval.high < 0;
  if (clear && std::abs(mean) > edge) {
    return (mean < 0) == lower_is_better ? Statement{Verdict::better, Reason::improved}
                                         : Statement{Verdict::worse, Reason::regressed};
  }
  if (interval.low >= -edge && interval.high <= edge) return {Verdict::same, Reason::within_delta};
  return {Verdict::inconclusive, clear ? Reason::below_delta : Reason::too_wide};
}

// By Student's t. Where the bootstrap's interval is another one, it has to support the same verdict by itself.
void decide_by_figures(Finding& finding, bool lower_is_better, const stats::MeanInterval& t, int method) {
  const Statement by_t = statement_of(t.mean, t.interval, finding.delta, lower_is_better);
  decide(finding, by_t.verdict, by_t.reason);
  if (!finding.bootstrap) return;
  const stats::Interval boot{std::log(finding.bootstrap->low), std::log(finding.bootstrap->high)};
  const double third = t.interval.width() / 3 + 1e-12;
  if (std::abs(boot.low - t.interval.low) <= third && std::abs(boot.high - t.interval.high) <= third) return;
  const Statement by_boot = statement_of(t.mean, boot, finding.delta, lower_is_better);
  if (method == 1 || by_boot.verdict != by_t.verdict) {
    decide(finding, Verdict::inconclusive, Reason::bootstrap_disagrees);
  }
}

}  // namespace

const char* name(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::better:
      return "better";
    case Verdict::worse:
      return "worse";
    case Verdict::same:
      return "same";
    case Verdict::inconclusive:
      return "inconclusive";
    case Verdict::void_:
      return "void";
    case Verdict::none:
      return "none";
  }
  return "?";
}

namespace {

struct ReasonText {
  const char* code;
  const char* text;
};

ReasonText text_of(Reason reason) noexcept {
  switch (reason) {
    case Reason::improved:
      return {"improved", "the interval is clear of no change and the effect is beyond delta"};
    case Reason::regressed:
      return {"regressed", "the interval is clear of no change and the effect is beyond delta"};
    case Reason::within_delta:
      return {"within_delta", "the whole interval lies inside delta"};
    case Reason::too_wide:
      return {"too_wide", "the interval holds no change and reaches over delta: more pairs are needed"};
    case Reason::below_delta:
      return {"below_delta", "the interval is clear of no change, but the effect is not beyond delta"};
    case Reason::bootstrap_disagrees:
      return {"bootstrap_disagrees",
              "the t interval and the bootstrap differ, and do not support the same verdict: the pairs are far from "
              "normal"};
    case Reason::holm:
      return {"holm", "clear alone, but not after correction for the number of judged metrics"};
    case Reason::floor_unknown:
      return {"floor_unknown", "no A/A floor of this machine and scenario is on record: run engram-bench selftest"};
    case Reason::oversubscribed:
      return {"oversubscribed", "more threads wanted to run than CPUs were allowed"};
    case Reason::no_ratio:
      return {"no_ratio", "a block's figure is zero, and a zero has no ratio"};
    case Reason::too_few_pairs:
      return {"too_few_pairs", "an interval needs two pairs"};
    case Reason::one_reroll:
      return {"one_reroll", "one re-roll is one draw of physical pages"};
    case Reason::no_samples:
      return {"no_samples", "the arms have no value of this metric"};
    case Reason::too_few_samples:
      return {"too_few_samples", "the statistic needs more samples a block"};
    case Reason::control_moved:
      return {"control_moved", "the negative control moved, which no arm can touch: something else changed"};
    case Reason::gates_failed:
      return {"gates_failed", "more than a tenth of the pairs failed a gate"};
    case Reason::emulated_time:
      return {"emulated_time", "a software emulator keeps this machine's time"};
    case Reason::time_sliced:
      return {"time_sliced", "several processes share one device, so its kernels run in turns"};
    case Reason::single_node:
      return {"single_node", "this machine cannot tell the arms apart"};
    case Reason::traced:
      return {"traced", "kernel records were kept (--trace), and what that costs is in the times"};
    case Reason::not_complete:
      return {"not_complete", "the run did not go through"};
    case Reason::check_failed:
      return {"check_failed", "a check failed or a fault was planted"};
    case Reason::guard_worse:
      return {"guard_worse", "the judged metric did not get worse, but a guard did"};
    case Reason::pages_not_as_asked:
      return {"pages_not_as_asked", "the pages do not lie as the arms ask for"};
  }
  return {"?", "?"};
}

}  // namespace

const char* name(Reason reason) noexcept { return text_of(reason).code; }
const char* explain(Reason reason) noexcept { return text_of(reason).text; }

Finding judge_figures(const Cell& cell, const Rules& rules) {
  Finding finding;
  finding.metric = cell.metric;
  finding.of_step = cell.of_step;
  finding.floor = cell.floor;
  // The floor is a |log ratio|; the change that it stands for is exp(floor) - 1.
  const double floor_change = cell.floor ? std::expm1(*cell.floor) : 0;
  finding.delta_raised = floor_change > rules.delta;
  finding.delta = std::max(rules.delta, floor_change);
  if (cell.pairs.empty()) {
    decide(finding, Verdict::none, cell.absent);
    return finding;
  }
  std::vector<stats::PairBlocks> counted;
  bool positive = true;
  for (const Pair& pair : cell.pairs) {
    if (!pair.gate.empty()) {
      ++finding.dropped;
      continue;
    }
    counted.push_back(pair.blocks);
    for (const auto* side : {&pair.blocks.a, &pair.blocks.b}) {
      positive = positive && std::all_of(side->begin(), side->end(), [](double x) { return x > 0; });
    }
  }
  finding.pairs = static_cast<std::int64_t>(counted.size());
  if (static_cast<double>(finding.dropped) > kLargestDropped * static_cast<double>(cell.pairs.size())) {
    decide(finding, Verdict::void_, Reason::gates_failed);
    return finding;
  }
  if (positive) {
    for (const stats::PairBlocks& pair : counted) finding.log_ratios.push_back(stats::pair_log_ratio(pair));
  }
  if (counted.size() < 2) {
    decide(finding, Verdict::none, cell.pairs.size() == 1 ? Reason::one_reroll : Reason::too_few_pairs);
    return finding;
  }
  if (!positive) {
    decide(finding, Verdict::inconclusive, Reason::no_ratio);
    return finding;
  }
  const stats::MeanInterval t = stats::t_interval(finding.log_ratios);
  const stats::Interval boot = stats::hierarchical_bootstrap(counted, rules.seed);
  finding.effect = std::exp(t.mean);
  finding.interval = stats::Interval{std::exp(t.interval.low), std::exp(t.interval.high)};
  finding.bootstrap = stats::Interval{std::exp(boot.low), std::exp(boot.high)};
  finding.deviation = t.deviation;
  finding.detectable = stats::smallest_detectable_effect(t.n, t.deviation);
  finding.sign_p = stats::sign_test(finding.log_ratios).p;
  const double error = t.deviation / std::sqrt(static_cast<double>(t.n));
  if (error > 0) {
    finding.p = 2 * stats::t_cdf(-std::abs(t.mean) / error, static_cast<double>(t.n - 1));
  } else {
    finding.p = t.mean == 0 ? 1 : 0;  // no spread at all: scripted times
  }
  finding.holm_p = finding.p;
  finding.clusters = stats::two_clusters(finding.log_ratios);
  decide_by_figures(finding, cell.lower_is_better, t, rules.method);
  return finding;
}

void correct_together(std::vector<Finding*> findings) {
  std::erase_if(findings, [](const Finding* one) { return !one->effect; });
  std::vector<double> p;
  for (const Finding* one : findings) p.push_back(one->p);
  const std::vector<double> adjusted = stats::holm(p);
  for (std::size_t i = 0; i < findings.size(); ++i) {
    Finding& one = *findings[i];
    one.holm_p = adjusted[i];
    const bool claims = one.figures_verdict == Verdict::better || one.figures_verdict == Verdict::worse;
    if (claims && one.holm_p > kAlpha) decide(one, Verdict::inconclusive, Reason::holm);
  }
}

bool control_moved(const Finding& control) {
  return control.figures_verdict == Verdict::better || control.figures_verdict == Verdict::worse;
}

void apply_conditions(Finding& finding, const Conditions& conditions, const Finding* control) {
  const auto set = [&](Verdict verdict, Reason reason) {
    finding.verdict = verdict;
    finding.reason = reason;
  };
  if (!conditions.checks_passed) return set(Verdict::none, Reason::check_failed);
  if (!conditions.complete) return set(Verdict::none, Reason::not_complete);
  if (finding.figures_verdict == Verdict::none || finding.figures_verdict == Verdict::void_) return;
  if (conditions.emulated_time) return set(Verdict::void_, Reason::emulated_time);
  if (conditions.time_sliced) return set(Verdict::void_, Reason::time_sliced);
  if (conditions.single_node) return set(Verdict::void_, Reason::single_node);
  if (conditions.traced) return set(Verdict::void_, Reason::traced);
  if (control != nullptr && control_moved(*control)) return set(Verdict::void_, Reason::control_moved);
  if (finding.figures_verdict == Verdict::inconclusive) return;
  if (conditions.oversubscribed) return set(Verdict::inconclusive, Reason::oversubscribed);
  if (!finding.floor) return set(Verdict::inconclusive, Reason::floor_unknown);
}

std::string effect_text(const Finding& finding) {
  if (!finding.effect || !finding.interval) return "";
  return fmt::format("{:+.2f} %{} [{:+.2f}, {:+.2f}]", percent(*finding.effect),
                     finding.of_step ? " of the baseline's step" : "", percent(finding.interval->low),
                     percent(finding.interval->high));
}

std::string finding_text(const Finding& finding) {
  std::string text = finding.verdict == Verdict::none ? "no verdict" : name(finding.verdict);
  text += fmt::format(" ({})", name(finding.reason));
  if (finding.effect) {
    text +=
        fmt::format(": {} {}, delta {:.2f} %{}, {} pairs", finding.metric, effect_text(finding), finding.delta * 100,
                    finding.delta_raised ? " (the A/A floor; the declared one lies below it)" : "", finding.pairs);
    if (finding.dropped > 0) text += fmt::format(" ({} dropped)", finding.dropped);
    if (finding.verdict != finding.figures_verdict) {
      text += fmt::format("; the figures alone read {}", name(finding.figures_verdict));
    }
  } else {
    text += fmt::format(": {}: {}", finding.metric, explain(finding.reason));
  }
  return text;
}

}  // namespace eb::evidence
