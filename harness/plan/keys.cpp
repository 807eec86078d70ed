#include "harness/plan/keys.h"

#include <algorithm>
#include <cmath>

#include "harness/base/error.h"
#include "harness/plan/key_rows.h"
#include "harness/plan/nearest.h"

namespace eb::plan {

namespace {

// "1 to 64", "above 0 and up to 1".
std::string range_text(const Key& key) {
  const bool is_integer = key.type == Type::integer || key.type == Type::integers ||
                          key.type == Type::text_or_integers || key.type == Type::readers;
  if (is_integer) return fmt::format("from {} to {}", key.low, key.high);
  if (key.low_excluded) return fmt::format("above {} and up to {}", key.number_low, key.number_high);
  return fmt::format("from {} to {}", key.number_low, key.number_high);
}

std::string one_of(const std::vector<std::string>& values) { return fmt::format("{}", fmt::join(values, ", ")); }

// What was found, short enough for a line.
std::string found_text(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  constexpr std::size_t kLongest = 80;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

[[noreturn]] void wrong_value(const Key& key, const std::string& path, const Json& value) {
  if (value.is_string() && !key.values.empty() && key.form.empty()) {
    fail(Exit::usage, "{}: expected {}, found {}; nearest: {}", path, key.expected(), found_text(value),
         nearest(value.get_ref<const std::string&>(), key.values));
  }
  fail(Exit::usage, "{}: expected {}, found {}", path, key.expected(), found_text(value));
}

bool in_list(const Key& key, const Json& value) {
  return std::find(key.values.begin(), key.values.end(), value.get_ref<const std::string&>()) != key.values.end();
}

bool integer_in_range(const Key& key, const Json& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    // 2^53: above it a JSON number with a fraction or exponent no longer names one integer.
    return number == std::floor(number) && std::abs(number) <= 9007199254740992.0 &&
           static_cast<std::int64_t>(number) >= key.low && static_cast<std::int64_t>(number) <= key.high;
  }
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) return false;
  return value.is_number_integer() && value.get<std::int64_t>() >= key.low && value.get<std::int64_t>() <= key.high;
}

bool number_in_range(const Key& key, const Json& value) {
  if (!value.is_number()) return false;
  const double number = value.get<double>();
  return std::isfinite(number) && number <= key.number_high &&
         (key.low_excluded ? number > key.number_low : number >= key.number_low);
}

bool list_fits(const Key& key, const Json& value) {
  return value.is_array() && value.size() >= key.min_items && value.size() <= key.max_items;
}

bool fits(const Key& key, const Json& value) {
  if (value.is_null()) return key.nullable;
  const auto text_fits = [&](const Json& entry) {
    return entry.is_string() && (key.values.empty() || in_list(key, entry));
  };
  const auto integers_fit = [&] {
    return list_fits(key, value) &&
           std::all_of(value.begin(), value.end(), [&](const Json& entry) { return integer_in_range(key, entry); });
  };
  switch (key.type) {
    case Type::boolean:
      return value.is_boolean();
    case Type::integer:
      return integer_in_range(key, value);
    case Type::number:
      return number_in_range(key, value);
    case Type::text:
      return text_fits(value);
    case Type::integers:
      return integers_fit();
    case Type::texts:
      return list_fits(key, value) && std::all_of(value.begin(), value.end(), text_fits);
    case Type::number_or_text:
      return number_in_range(key, value) || text_fits(value);
    case Type::text_or_integers:
      return text_fits(value) || (integers_fit() && !value.empty());
    case Type::nodes:
      return text_fits(value) || (integers_fit() && !value.empty()) || integer_in_range(key, value);
    case Type::readers:
      return text_fits(value) || (integers_fit() && !value.empty()) ||
             (integer_in_range(key, value) && value.get<double>() >= 1);
    case Type::number_map:
      return value.is_object() && value.size() <= key.max_items &&
             std::all_of(value.begin(), value.end(), [&](const Json& entry) { return number_in_range(key, entry); });
    case Type::value_map:
      return value.is_object() && value.size() <= key.max_items;
    case Type::override_map:
      return value.is_object() && value.size() <= key.max_items &&
             std::all_of(value.begin(), value.end(), [](const Json& entry) { return entry.is_object(); });
    case Type::objects:
      return list_fits(key, value) &&
             std::all_of(value.begin(), value.end(), [](const Json& entry) { return entry.is_object(); });
  }
  return false;
}

std::string with_stars(std::string_view path) {
  std::string out;
  for (const std::string& segment : split_path(path)) {
    if (!out.empty()) out += '.';
    out += is_index(segment) ? "*" : segment;
  }
  return out;
}

std::string last_segment(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? path : path.substr(dot + 1));
}

std::string parent(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? std::string_view{} : path.substr(0, dot));
}

}  // namespace

std::string Key::expected() const {
  const std::string lengths =
      min_items > 0 ? fmt::format("{} to {}", min_items, max_items) : fmt::format("up to {}", max_items);
  std::string text;
  switch (type) {
    case Type::boolean:
      text = "true or false";
      break;
    case Type::integer:
      text = "an integer " + range_text(*this);
      break;
    case Type::number:
      text = "a number " + range_text(*this);
      break;
    case Type::text:
      text = !form.empty()        ? form
             : values.empty()     ? "a text"
             : values.size() == 1 ? values[0]
                                  : "one of " + one_of(values);
      break;
    case Type::integers:
      text = fmt::format("a list of {} integers {}", lengths, range_text(*this));
      break;
    case Type::texts:
      text = fmt::format("a list of {} texts", lengths);
      break;
    case Type::number_or_text:
    case Type::nodes:
      text = form;
      break;
    case Type::text_or_integers:
      text = fmt::format("{} or a list of integers {}", one_of(values), range_text(*this));
      break;
    case Type::readers:
      text = fmt::format("{}, a number of ranks from 1 to {}, or a list of ranks {}", one_of(values), high,
                         range_text(*this));
      break;
    case Type::number_map:
      text = fmt::format("an object whose values are numbers {}", range_text(*this));
      break;
    case Type::value_map:
      text = fmt::format("an object of up to {} names and values", max_items);
      break;
    case Type::override_map:
      text = fmt::format("an object of up to {} names, each with an object of keys and values", max_items);
      break;
    case Type::objects:
      text = fmt::format("a list of {} objects", lengths);
      break;
  }
  return nullable ? text + " or null" : text;
}

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> rows;
    add_model_rows(rows);
    add_storage_rows(rows);
    add_load_rows(rows);
    return rows;
  }();
  return table;
}

const Key* find_key(std::string_view path) {
  const std::string wanted = with_stars(path);
  for (const Key& key : keys()) {
    if (key.path == wanted) return &key;
  }
  return nullptr;
}

bool is_group(std::string_view path) {
  if (path.empty()) return true;
  const std::string prefix = with_stars(path) + ".";
  return std::any_of(keys().begin(), keys().end(), [&](const Key& key) { return key.path.starts_with(prefix); });
}

// Compared with whole paths, and with last names alone for a key that stands in the wrong place; a name in the same
// object wins over one elsewhere.
std::string nearest_key(std::string_view path) {
  const std::string wanted = with_stars(path);
  const std::string wanted_last = last_segment(wanted);
  const std::string wanted_parent = parent(wanted);
  std::vector<std::string> candidates;
  for (const Key& key : keys()) {
    candidates.push_back(key.path);
    for (std::string group = parent(key.path); !group.empty(); group = parent(group)) {
      if (!group.ends_with("*")) candidates.push_back(group);
    }
  }
  std::size_t best = std::numeric_limits<std::size_t>::max();
  std::string found;
  for (const std::string& candidate : candidates) {
    const std::size_t elsewhere = parent(candidate) == wanted_parent ? 0 : 2;
    const std::size_t distance = std::min(2 * edit_distance(wanted, candidate),
                                          2 * edit_distance(wanted_last, last_segment(candidate)) + elsewhere);
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

void check_value(const Key& key, const std::string& path, const Json& value) {
  if (!fits(key, value)) wrong_value(key, path, value);
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> segments;
  while (true) {
    const std::size_t dot = path.find('.');
    segments.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return segments;
    path.remove_prefix(dot + 1);
  }
}

bool is_name(std::string_view text, std::size_t longest) noexcept {
  return !text.empty() && text.size() <= longest && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

bool is_index(std::string_view segment) noexcept {
  return !segment.empty() && segment.size() <= 9 &&
         std::all_of(segment.begin(), segment.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace eb::plan
