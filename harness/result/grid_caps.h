// The table of an experiment on prefetch.grid_cap: what each cap gave, from which cap on the lookup is hidden, and from
// which on it slows the front layers down.
#pragma once

#include "harness/evidence/judge.h"
#include "harness/result/pair_figures.h"

namespace eb::result {

// Null where the experiment's factor is another. Errors: nlohmann's exceptions where `evidence` is not of the
// documented form.
[[nodiscard]] Json grid_caps_json(const Json& evidence, const PairFigures& figures,
                                  const evidence::Conditions& conditions);

}  // namespace eb::result
