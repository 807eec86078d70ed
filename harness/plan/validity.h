// Which table_mode x backing x policy x copies a scenario may ask for: ONE table, that the checks read, that
// docs/scenario.md prints and that a test walks through in full. Pure.
#pragma once

#include <string>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::plan {

// A block of the table: every combination of its four lists is valid. What no block covers is refused (exit 2).
struct StorageRule {
  std::vector<Backing> backings;
  std::vector<TableMode> modes;
  std::vector<PolicyKind> policies;
  std::vector<Copies> copies;
  const char* why;  // for the reference page
};
[[nodiscard]] const std::vector<StorageRule>& storage_rules();

struct StorageChoice {
  TableMode mode{};
  Backing backing{};
  PolicyKind policy{};
  Copies copies{};
};
[[nodiscard]] bool is_valid(const StorageChoice& choice);

// Errors: Error(usage) that names the first key, in the order backing, policy, copies, that does not go with those
// before it, and the values that would.
void check_storage_choice(const StorageChoice& choice);

// The table in Markdown, one line a block.
[[nodiscard]] std::string validity_reference();

}  // namespace eb::plan
