#include "harness/cli/sweep_axes.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <regex>

#include "harness/base/error.h"

namespace eb::cli {

namespace {

constexpr std::size_t kMostValues = 4096;
constexpr std::size_t kMostCells = 10000;

// Empty where `text` is no range.
std::optional<std::vector<std::string>> range_of(const std::string& key, const std::string& text) {
  static const std::regex kRange(R"((\d{1,15})-(\d{1,15})(?:([+*])(\d{1,15}))?)");
  std::smatch parts;
  if (!std::regex_match(text, parts, kRange)) return std::nullopt;
  const std::int64_t first = std::stoll(parts[1]);
  const std::int64_t last = std::stoll(parts[2]);
  const bool factor = parts[3] == "*";
  const std::int64_t by = parts[4].matched ? std::stoll(parts[4]) : 1;
  if (last < first || by < (factor ? 2 : 1) || (factor && first < 1)) {
    fail(Exit::usage, "--axis {}: {} is an empty or endless range", key, text);
  }
  std::vector<std::string> values;
  for (std::int64_t value = first; value <= last; value = factor ? value * by : value + by) {
    values.push_back(std::to_string(value));
    if (values.size() > kMostValues) fail(Exit::usage, "--axis {}: more than {} values", key, kMostValues);
  }
  return values;
}

std::vector<std::string> list_of(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' && (i == 0 || text[i - 1] != '\\')) quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ',' && depth == 0 && !quoted) {
      values.emplace_back();
    } else {
      values.back() += c;
    }
  }
  return values;
}

}  // namespace

Axis parse_axis(const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == std::string::npos || at == 0 || at + 1 == text.size()) {
    fail(Exit::usage, "--axis {}: write KEY=A,B,... or KEY=FIRST-LAST, with +STEP or *FACTOR", text);
  }
  Axis axis;
  axis.key = text.substr(0, at);
  const std::string values = text.substr(at + 1);
  axis.values = range_of(axis.key, values).value_or(std::vector<std::string>{});
  if (axis.values.empty()) axis.values = list_of(values);
  if (axis.values.size() > kMostValues) fail(Exit::usage, "--axis {}: more than {} values", axis.key, kMostValues);
  for (const std::string& value : axis.values) {
    if (value.empty()) fail(Exit::usage, "--axis {}: an empty value in {}", axis.key, values);
    if (std::count(axis.values.begin(), axis.values.end(), value) > 1) {
      fail(Exit::usage, "--axis {}: {} comes twice", axis.key, value);
    }
  }
  return axis;
}

std::vector<std::vector<plan::Setting>> combine(const std::vector<Axis>& axes, bool zip) {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[i].key == axes[j].key) fail(Exit::usage, "--axis {} is given twice", axes[i].key);
    }
    if (zip && axes[i].values.size() != axes.front().values.size()) {
      fail(Exit::usage, "--zip: axis {} has {} values, {} has {}", axes.front().key, axes.front().values.size(),
           axes[i].key, axes[i].values.size());
    }
  }
  std::vector<std::vector<plan::Setting>> cells;
  if (zip) {
    for (std::size_t i = 0; !axes.empty() && i < axes.front().values.size(); ++i) {
      cells.emplace_back();
      for (const Axis& axis : axes) cells.back().push_back({axis.key, axis.values[i]});
    }
    return cells;
  }
  cells.emplace_back();
  for (const Axis& axis : axes) {
    std::vector<std::vector<plan::Setting>> more;
    for (const auto& cell : cells) {
      for (const std::string& value : axis.values) {
        more.push_back(cell);
        more.back().push_back({axis.key, value});
      }
    }
    if (more.size() > kMostCells) fail(Exit::usage, "a sweep of more than {} cells", kMostCells);
    cells = std::move(more);
  }
  return cells;
}

}  // namespace eb::cli
