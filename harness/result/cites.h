// Stored runs that an experiment cites: read, verified, and compared with this machine before the run begins.
#pragma once

#include <string>
#include <vector>

#include "harness/result/floors.h"
#include "harness/result/json_value.h"

namespace eb::result {

struct CitedRun {
  std::string cited;  // as the scenario says it
  std::string folder;
};
// One object a cited run: what it is, whether it is of the machine of `key`, and what it says (docs/results.md,
// evidence.cites). Errors: Error(usage) for one that is not there, Error(bad_data) for one that does not verify.
[[nodiscard]] Json read_cites(const std::vector<CitedRun>& cites, const FloorKey& key);

// What the advice of an experiment on copies rests on, out of evidence.cites; empty: A1 or B1 of this machine is
// missing.
struct CitedGround {
  std::string a1;  // what it says; empty: none that counts
  std::string b1;
};
[[nodiscard]] CitedGround ground_of(const Json& cites);

}  // namespace eb::result
