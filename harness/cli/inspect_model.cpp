// inspect: which model, and how its figures reach standard output.
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/cli/inspect.h"
#include "harness/plan/scenario.h"

namespace eb::cli::inspect {

namespace {

struct ModelChoice {
  engram::Model model;
  double table_scale = 1.0;
};

// A file holds the object that a scenario has under "model", and is read by the same table of keys.
ModelChoice model_from_file(const std::string& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error&) {
    const auto names = engram::preset_names();
    fail(Exit::usage, "--model {}: neither a preset ({}) nor a file that can be read", path, fmt::join(names, ", "));
  }
  try {
    const auto object = nlohmann::json::parse(text);
    if (!object.is_object()) fail(Exit::usage, "a JSON object is needed, found {}", object.type_name());
    const auto scenario = plan::scenario_from_json(nlohmann::json{{"name", "model"}, {"model", object}}.dump());
    return {scenario.model.base, scenario.model.table_scale};
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::usage, "--model {}: {}", path, error.what());
  } catch (const Error& error) {
    fail(error.exit(), "--model {}: {}", path, error.what());
  }
}

ModelChoice choose_model(const Options& options) {
  const auto names = engram::preset_names();
  const bool is_preset = std::ranges::find(names, options.model) != names.end();
  // A word without a dot or slash that names no file is a mistyped preset: `preset` says which one is near.
  const bool is_file = !is_preset && (options.model.find('/') != std::string::npos ||
                                      options.model.ends_with(".json") || std::ifstream(options.model).good());
  ModelChoice choice = is_file ? model_from_file(options.model) : ModelChoice{engram::preset(options.model), 1.0};
  if (options.table_scale) choice.table_scale = *options.table_scale;
  return choice;
}

}  // namespace

void write_out(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail_errno(errno, "standard output");
  }
}

void print(const Json& json) { write_out(json.dump(2) + "\n"); }

Domain make_domain(const Options& options) {
  const ModelChoice choice = choose_model(options);
  Domain domain{engram::make_geometry(choice.model, choice.table_scale), choice.table_scale, {}};
  std::vector<int> known;
  for (std::size_t i = 0; i < domain.geometry.layers.size(); ++i) {
    const int layer = domain.geometry.layers[i].layer;
    known.push_back(layer);
    if (!options.layer || *options.layer == layer) domain.layers.push_back(i);
  }
  if (domain.layers.empty()) {
    fail(Exit::usage, "--layer {}: no Engram table there; layers with one: {}", *options.layer, fmt::join(known, ", "));
  }
  return domain;
}

Json layer_numbers(const Domain& domain) {
  Json numbers = Json::array();
  for (const std::size_t i : domain.layers) numbers.push_back(domain.geometry.layers[i].layer);
  return numbers;
}

}  // namespace eb::cli::inspect
