// The nearest of several names to one that is unknown: for error texts.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace eb::plan {

// Levenshtein distance in bytes.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);
// The first of the nearest; empty where `names` is empty.
[[nodiscard]] std::string nearest(std::string_view wanted, std::span<const std::string> names);

}  // namespace eb::plan
