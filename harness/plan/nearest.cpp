#include "harness/plan/nearest.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace eb::plan {

namespace {
// Names in a scenario are short; what is longer is compared by its beginning, so that a huge key costs little.
constexpr std::size_t kCompared = 128;
}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kCompared);
  b = b.substr(0, kCompared);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string nearest(std::string_view wanted, std::span<const std::string> names) {
  std::size_t best = std::numeric_limits<std::size_t>::max();
  std::string found;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(wanted, name);
    if (distance < best) {
      best = distance;
      found = name;
    }
  }
  return found;
}

}  // namespace eb::plan
