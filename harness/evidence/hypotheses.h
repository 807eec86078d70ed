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

struct HypothesisInput {
  std::string factor;
  LinkStatus pages = LinkStatus::not_tested;
  bool cross_socket_counted = false;  // traffic between the sockets was measured
  bool host_counted = false;          // memory controller or PCIe traffic was measured
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

// Advice of an experiment on copies rests on the A1 and B1 results of the same machine. Empty for other factors.
[[nodiscard]] std::string copies_advice(const std::string& factor, bool a1_on_record, bool b1_on_record);

}  // namespace eb::evidence
