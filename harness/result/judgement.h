// Verdicts of a run from its evidence section and its samples, and nothing else: so that they can be derived again from
// the folder, years later.
#pragma once

#include <string>

#include "harness/evidence/hypotheses.h"
#include "harness/result/floors.h"
#include "harness/result/json_value.h"
#include "harness/result/samples.h"

namespace eb::result {

struct Record;

// Everything beside the samples that verdicts rest on: the section "evidence" of result.json (docs/evidence.md).
[[nodiscard]] Json evidence_section(const Record& record);

// Floors of the judged metrics for an experiment of `made` pairs: numbers, or null with the reason.
[[nodiscard]] Json floors_section(const plan::ExperimentSpec& experiment, const AaPairs& aa_pairs, int made);

// Under which name the A/A pairs of a metric are kept: those of a wait, which are shares of a step, apart from ratios.
[[nodiscard]] std::string floor_name(const std::string& metric);

struct Judgement {
  Json comparisons = Json::array();
  Json hypotheses = Json::array();
  Json grid_caps = nullptr;  // docs/results.md; null where the factor is not prefetch.grid_cap
  int gate_exit = 4;         // as --gate: 3 where one comparison is worse, 0 where all are better or same
};
// Errors: nlohmann's exceptions where `evidence` is not of the documented form.
[[nodiscard]] Judgement judge(const Json& evidence, const Samples& samples);

[[nodiscard]] Json finding_json(const evidence::Finding& finding);

}  // namespace eb::result
