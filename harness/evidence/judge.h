// A verdict on one metric of two arms, from pairs: what the figures say, and what the conditions of the run allow to be
// said. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/stats/paired.h"
#include "harness/stats/tests.h"

namespace eb::evidence {

enum class Verdict { better, worse, same, inconclusive, void_, none };
[[nodiscard]] const char* name(Verdict verdict) noexcept;

// Why a verdict is what it is. The texts of name() are the codes in result files: they stay.
enum class Reason {
  improved,
  regressed,
  within_delta,
  too_wide,             // the interval reaches over delta
  below_delta,          // clear of no change, but the point is inside delta
  bootstrap_disagrees,  // the intervals differ at an end by over a third of t's width, and each supports another
                        // verdict
  holm,                 // clear of no change alone, not after correction for the number of judged metrics
  floor_unknown,        // no A/A floor of this machine and scenario is on record
  oversubscribed,       // more runnable threads than CPUs
  no_ratio,             // a zero has no ratio
  too_few_pairs,        // two are needed for an interval
  one_reroll,           // one draw of physical pages
  no_samples,           // the metric has no value in these arms
  too_few_samples,      // the statistic needs more samples a block
  control_moved,        // a figure that the arm cannot touch moved with it
  gates_failed,         // more than a tenth of the pairs was dropped
  emulated_time,        // a software emulator keeps the clock
  time_sliced,          // several processes share one device
  single_node,          // the machine cannot tell the arms apart
  traced,               // the recording of kernels is in the times
  not_complete,         // the run did not end
  check_failed,         // rows were wrong, or a fault was planted
  guard_worse,          // the judged metric did not get worse, a guard did
  pages_not_as_asked,   // the page distribution is not what the arms ask for
};
[[nodiscard]] const char* name(Reason reason) noexcept;
// One sentence for people.
[[nodiscard]] const char* explain(Reason reason) noexcept;

struct Pair {
  int pair = 0;
  stats::PairBlocks blocks;
  std::string gate;  // why the pair is dropped, both sides of it; empty: it counts
};

// What the run's conditions take away from any verdict on its times.
struct Conditions {
  bool complete = true;
  bool checks_passed = true;
  bool emulated_time = false;
  bool time_sliced = false;
  bool single_node = false;
  bool traced = false;
  bool oversubscribed = false;
};

struct Cell {
  std::string metric;  // "lookup_us.p50"
  bool lower_is_better = true;
  std::vector<Pair> pairs;
  std::optional<double> floor;  // A/A floor of this metric at this number of pairs, as |log ratio|
  // The metric is a wait, and the pairs hold the baseline's step with each arm's wait in it: the ratio says by how much
  // a step would change by that wait alone.
  bool of_step = false;
  // Why there are no pairs; only looked at where there are none.
  Reason absent = Reason::no_samples;
};

struct Finding {
  std::string metric;
  bool of_step = false;  // the effect is a share of the baseline's step, not of the metric itself
  Verdict verdict = Verdict::none;
  Reason reason = Reason::no_samples;
  // What the figures alone say, before floor_unknown, oversubscribed and the void conditions: what selftest counts.
  Verdict figures_verdict = Verdict::none;
  Reason figures_reason = Reason::no_samples;

  std::int64_t pairs = 0;  // that count
  std::int64_t dropped = 0;
  std::vector<double> log_ratios;  // y of each pair that counts
  // Present from two pairs on. Ratios B/A; intervals hold the ratio with 95 %.
  std::optional<double> effect;
  std::optional<stats::Interval> interval;
  std::optional<stats::Interval> bootstrap;
  double deviation = 0;   // of y
  double detectable = 0;  // smallest detectable effect, as |log ratio|
  double sign_p = 1;
  double p = 1;  // of the t test
  double holm_p = 1;
  std::optional<double> floor;
  double delta = 0;           // used: max(declared, floor), as a relative change
  bool delta_raised = false;  // the floor was above the declared one
  std::optional<stats::TwoClusters> clusters;
};

// How verdicts were made, kept with each result so that it is derived again as it was.
// 1: a bootstrap whose interval differs from t's by over a third of its width at an end leaves no verdict.
// 2: it leaves the verdict that both intervals support.
inline constexpr int kMethod = 2;

struct Rules {
  double delta = 0.02;  // declared, as a relative change
  std::uint64_t seed = 1;
  int method = kMethod;
};

// Judges one cell by its figures alone: figures_verdict, and the same as verdict. No correction yet.
[[nodiscard]] Finding judge_figures(const Cell& cell, const Rules& rules);

// Holm over the findings that are judged together; one that the correction takes away becomes inconclusive.
void correct_together(std::vector<Finding*> findings);

// Lays the conditions over a finding: void, then inconclusive. `control`: of the negative control, null where it was
// not measured.
void apply_conditions(Finding& finding, const Conditions& conditions, const Finding* control);

// True where a control that no arm can touch left the floor.
[[nodiscard]] bool control_moved(const Finding& control);

// "+3.2 % [+1.1, +5.4]" of a ratio and its interval.
[[nodiscard]] std::string effect_text(const Finding& finding);
// One line: verdict, reason, effect, delta, pairs.
[[nodiscard]] std::string finding_text(const Finding& finding);

}  // namespace eb::evidence
