// Values of result files: a number is a number; what was not measured is null with its reason, never 0 or NaN.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace eb::result {

using Json = nlohmann::ordered_json;

[[nodiscard]] inline Json missing(const std::string& reason) { return {{"value", nullptr}, {"reason", reason}}; }

// `value`, or null with the reason where it is not a finite number.
[[nodiscard]] inline Json number(double value, const std::string& reason) {
  return std::isfinite(value) ? Json(value) : missing(reason);
}

// Text that may hold any bytes (paths, /proc lines): invalid UTF-8 becomes U+FFFD instead of an exception.
[[nodiscard]] inline std::string dump(const Json& value, int indent = 2) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace eb::result
