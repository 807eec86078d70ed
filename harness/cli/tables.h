// Console view of a result: text from the content of result.json, so that a stored result prints as a fresh one.
#pragma once

#include <string>

#include "harness/result/json_value.h"

namespace eb::cli {

// Arms and their figures, placement, ledger, checks, comparisons and warnings. `folder` = where the result lies.
// `all_metrics`: also those of the registry that are left out by default. Lines end in '\n'; no colour.
[[nodiscard]] std::string result_tables(const result::Json& document, const std::string& folder, bool all_metrics);

// The parts, for tests and for `compare`. `all`: also chains without a verdict and hypotheses that are not testable.
[[nodiscard]] std::string verdict_lines(const result::Json& document, bool all);
[[nodiscard]] std::string figures_table(const result::Json& document, bool all_metrics);
// Lookup rates beside BW_effective; empty where it was not measured.
[[nodiscard]] std::string lookup_rates_table(const result::Json& document);
// What each grid cap gave; empty where the factor is another.
[[nodiscard]] std::string grid_caps_table(const result::Json& document);
[[nodiscard]] std::string placement_table(const result::Json& document);
[[nodiscard]] std::string ledger_table(const result::Json& document);
// "12.34", "123.4", "1234": four significant digits, never more.
[[nodiscard]] std::string short_number(double value);

}  // namespace eb::cli
