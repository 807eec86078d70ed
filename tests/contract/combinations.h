// Every combination of storage settings that a scenario may have, out of the table that `plan` checks it by: none can
// be forgotten here, and one that becomes valid is tested from then on.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::contract {

struct Combination {
  plan::TableMode mode{};
  plan::Backing backing{};
  plan::PolicyKind policy{};
  plan::Copies copies{};

  // "shared_hugetlb_2m_bind_one": a test's name.
  [[nodiscard]] std::string text() const;
  // What GoogleTest prints of a parameter.
  friend void PrintTo(const Combination& one, std::ostream* out) { *out << one.text(); }
};

// The scenario file of a combination: two replicas of two ranks, two layers, replicas with different batches, one of
// them idle in every second step. `backend`: cpu, or fake with device graphs recorded piecewise.
[[nodiscard]] std::string scenario_text(const Combination& combination, const std::string& backend);

// Those that plan::is_valid() takes, without the bounds (hbm, stub): these hold no table in host memory.
[[nodiscard]] const std::vector<Combination>& valid_combinations();

}  // namespace eb::contract
