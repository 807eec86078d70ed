// Whether the tables' pages lie, in a snapshot, where the policy was asked to put them.
#pragma once

#include <string>
#include <vector>

#include "harness/result/record.h"

namespace eb::result {

struct BrokenPromise {
  int backing = 0;
  std::string text;  // "arm A, backing 0, after_register: policy bind:1 was asked for and not obtained: ..."
};

// Of the snapshots `label` of a re-roll, by backing; a share may be off by storage.tolerance. Empty as well where no
// page was counted. Errors: as parse_snapshots(); Error(skipped) for a node that this machine lacks.
[[nodiscard]] std::vector<BrokenPromise> broken_promises(const Record& record, const RerollRecord& reroll,
                                                         const std::string& label);

// Where the two sources of where pages lie do not say the same of a backing: numa_maps of the mapping, and move_pages
// of the tables in it, within what drawing pages leaves open. Nothing where one of them is missing or has gaps. Errors:
// as parse_snapshots().
[[nodiscard]] std::vector<BrokenPromise> disputed_pages(const Record& record, const RerollRecord& reroll,
                                                        const std::string& label);

}  // namespace eb::result
