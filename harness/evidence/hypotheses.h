// H1 to H4, judged by the findings of one comparison. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/evidence/chain.h"

namespace eb::evidence {

enum class Standing { supported, weakened, not_testable };
[[nodiscard]] const char* name(Standing standing) noexcept;

struct Hypothesis {
  std::string id;  // "H1"
  std::string statement;
  Standing standing = Standing::not_testable;
  std::string why;
  std::map<std::string, double> figures;  // name with unit -> value
};

// Bytes a step of the two arms, as counters saw them in the observed pass.
struct Traffic {
  std::optional<double> baseline_bytes;
  std::optional<double> arm_bytes;
  std::string reason = "no counter of it was read";  // why one is missing

  [[nodiscard]] bool counted() const noexcept { return baseline_bytes && arm_bytes; }
  // Up (1), down (-1) or neither (0): a change below `delta` is none.
  [[nodiscard]] int direction(double delta) const noexcept;
};

struct HypothesisInput {
  std::string factor;
  LinkStatus pages = LinkStatus::not_tested;
  Traffic cross_socket;  // between the sockets
  Traffic host;          // of the memory controllers, or over PCIe
  // Findings of the arm over the baseline by metric without statistic: lookup_us, exposed_us, front_us, step_us.
  std::map<std::string, Finding> findings;
  // Medians of the arm that submits early, in us; empty where no arm does.
  std::optional<double> first_exposed_us;      // of the earliest Engram layer
  std::optional<double> first_recoverable_us;  // of the same
  int first_layer = -1;
  // prefetch.submit: which way the arm goes from its baseline.
  bool arm_is_early = false;
};

[[nodiscard]] std::vector<Hypothesis> judge_hypotheses(const HypothesisInput& input);

// Advice of an experiment on copies rests on the A1 and B1 results of the same machine: `a1` and `b1` are what these
// say, empty where there is none. Empty for other factors.
[[nodiscard]] std::string copies_advice(const std::string& factor, const std::string& a1, const std::string& b1);

}  // namespace eb::evidence
