// A/A pairs on record: what the same arm against itself reaches on this machine, by machine, scenario and metric.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/plan/scenario.h"
#include "harness/result/json_value.h"
#include "placement/topology.h"

namespace eb::result {

// What a floor holds for. `scenario` is a hash of the scenario without its names, seed and experiment, so that a floor
// measured on a decode step is not used for a prefill one; `one_allocation` whether a pair's arms share an allocation.
struct FloorKey {
  Json machine;             // CPU model, CPUs, NUMA nodes, kernel, backend
  std::string fingerprint;  // SHA-256 of it
  std::string scenario;     // SHA-256
  bool one_allocation = true;
};
[[nodiscard]] FloorKey floor_key(const plan::Plan& plan, const placement::Topology& topology);

// Where they are kept: $ENGRAM_BENCH_STATE, else $XDG_STATE_HOME/engram-bench, else ~/.local/state/engram-bench.
// Empty where none of the three is set.
[[nodiscard]] std::optional<std::string> state_folder();

// A/A log ratios by metric; empty where there are none. Errors: Error(bad_data) for a file that is damaged.
using AaPairs = std::map<std::string, std::vector<double>>;
[[nodiscard]] AaPairs read_floor(const std::string& folder, const FloorKey& key);
// Adds the pairs of one more A/A experiment, named by `origin` (added once, however often it is called). Safe under two
// writers, and all or nothing. Errors: Error(failure) where the file cannot be written.
void add_floor(const std::string& folder, const FloorKey& key, const std::string& origin, const AaPairs& pairs);

}  // namespace eb::result
