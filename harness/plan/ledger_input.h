// What the ledger needs to know of a scenario.
#pragma once

#include "harness/engram/ledger.h"
#include "harness/plan/layout.h"

namespace eb::plan {

[[nodiscard]] engram::LedgerInput ledger_input(const Scenario& scenario, const RunLayout& layout);

}  // namespace eb::plan
