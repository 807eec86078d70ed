// Figures of the pairs of an experiment, out of the evidence section and the samples, and findings over them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/evidence/judge.h"
#include "harness/result/json_value.h"
#include "harness/result/samples.h"

namespace eb::result {

class PairFigures {
 public:
  // Both must outlive this object. Errors of all: nlohmann's exceptions where `evidence` is not of the documented form.
  PairFigures(const Json& evidence, const Samples& samples);

  // The pairs in which both arms have blocks. `a` and `b` may be null: no pairs. `enough` turns false where a block has
  // too few samples for `statistic`.
  [[nodiscard]] std::vector<evidence::Pair> pairs(const std::string& arm_a, const RerollValues* a,
                                                  const std::string& arm_b, const RerollValues* b,
                                                  const std::string& statistic, bool& enough) const;
  [[nodiscard]] const RerollValues* values_of(const std::string& arm, const std::string& column) const;

  // What the figures say of `arm` against `baseline`; no correction, no conditions. A wait is judged by what it adds to
  // the baseline's step (docs/evidence.md).
  [[nodiscard]] evidence::Finding judge(const std::string& baseline, const std::string& arm,
                                        const std::string& metric) const;
  // Share of the step of `arm` that a wait takes, one a pair that passed its gates: median of the wait over the blocks
  // by that of the step.
  [[nodiscard]] std::vector<double> step_shares(const std::string& arm, const std::string& column) const;

  [[nodiscard]] const evidence::Rules& rules() const noexcept { return rules_; }

 private:
  [[nodiscard]] bool is_wait(const std::string& column) const;
  [[nodiscard]] std::string gate_of(int pair) const;
  void put_on_step(std::vector<evidence::Pair>& pairs, const std::string& baseline, const std::string& column,
                   const std::string& statistic) const;

  const Json& evidence_;
  const Samples& samples_;
  evidence::Rules rules_;
};

}  // namespace eb::result
