// The table of the scenario's keys: one row a key, with type, range, default, unit, text and access to the typed
// scenario. The parser, --set, nearest-key errors, the JSON schema and the reference page all read it.
// Internal to harness/plan.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::plan {

using Json = nlohmann::ordered_json;  // keeps the file's order: arms are compared in the order they are written

enum class Type {
  boolean,
  integer,
  number,
  text,
  integers,          // list of integers
  texts,             // list of strings
  number_or_text,    // prefetch.grid_cap
  text_or_integers,  // device.rank_map
  nodes,             // storage.bind_ranks: a text with a grammar, a NUMA node, or a list of them
  readers,           // workload.active_readers: a text, a number of ranks, or a list of ranks
  number_map,        // object: any name -> number
  value_map,         // object: any name -> any value (experiment.arms)
  override_map,      // object: name -> {key: value} (experiment.controls)
  objects,           // list of objects whose keys are rows of the table ("workload.batches.*.decode")
};

// What a key is read into or written from. Only the part a key belongs to is set.
struct Target {
  Scenario* scenario = nullptr;
  ExperimentSpec* experiment = nullptr;
  std::size_t item = 0;                 // of a list of objects
  const std::string* folder = nullptr;  // relative paths resolve against it
};

struct Key {
  std::string path;  // "*" stands for a list index
  Type type = Type::text;
  bool required = false;
  bool nullable = false;
  bool inherits = false;    // no default of its own: the preset's value holds
  bool path_value = false;  // a file or folder, relative to the scenario file
  Json fallback;            // default, in the file's own form
  // Range of an integer, of each entry of a list of integers, or of a number.
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
  double number_low = 0;
  double number_high = 0;
  bool low_excluded = false;
  std::size_t min_items = 0;
  std::size_t max_items = 4096;
  std::vector<std::string> values;  // the allowed texts; empty: any text
  std::string form;                 // how a text with a grammar is written, for errors and the reference
  std::string pattern;              // the same as a regular expression, for the schema
  std::string unit;
  std::string doc;
  // Errors: Error(usage) without the path (the caller adds it).
  std::function<void(Target&, const Json&)> set;
  std::function<Json(Target&)> get;

  [[nodiscard]] std::string expected() const;  // "an integer from 1 to 64"
};

// In the order in which keys are applied: a preset before what is laid over it.
[[nodiscard]] const std::vector<Key>& keys();
// The key of a path in which list indices are numbers; null where there is none.
[[nodiscard]] const Key* find_key(std::string_view path);
// True for "storage" or "workload.batches.0": a path that holds keys.
[[nodiscard]] bool is_group(std::string_view path);
// The key (or group) whose name is nearest to an unknown one.
[[nodiscard]] std::string nearest_key(std::string_view path);

// Checks type, range and allowed values. Errors: Error(usage) that names the key, what was expected and what was found.
void check_value(const Key& key, const std::string& path, const Json& value);

[[nodiscard]] std::vector<std::string> split_path(std::string_view path);
// 1 to `longest` letters, digits, dots, hyphens and underscores.
[[nodiscard]] bool is_name(std::string_view text, std::size_t longest) noexcept;
[[nodiscard]] bool is_index(std::string_view segment) noexcept;

}  // namespace eb::plan
