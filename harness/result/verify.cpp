#include "harness/result/verify.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <thread>
#include <vector>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"
#include "harness/result/cells_json.h"
#include "harness/result/derivation.h"
#include "harness/result/folder.h"
#include "harness/result/json_value.h"
#include "harness/result/judgement.h"
#include "harness/result/lookup_rates.h"

namespace eb::result {

namespace {

namespace fs = std::filesystem;

constexpr int kResultVersion = 1;

Json parse(const std::string& path) {
  Json json = Json::parse(read_file(path), nullptr, false);
  if (json.is_discarded()) fail(Exit::bad_data, "{}: not JSON", path);
  return json;
}

// Looked at before anything else: another version may list and hash its files in another way.
void check_version(const std::string& path, const Json& result) {
  if (!result.is_object() || !result.contains("schema_version")) return;  // the hashes will tell
  const Json version = result.at("schema_version");
  if (version == kResultVersion) return;
  const Json context = result.value("context", Json::object());
  const Json writer = context.is_object() ? context.value("version", Json("?")) : Json("?");
  fail(Exit::bad_data,
       "{}/result.json: schema_version {}, this program reads {}: use the engram-bench that wrote it (version {}) or a "
       "newer one",
       path, version.dump(), kResultVersion, writer.is_string() ? writer.get<std::string>() : writer.dump());
}

// Every cell must be what its samples give.
void check_cells(const std::string& path, const Json& result, const Samples& samples) {
  for (const Json& cell : result.at("cells")) {
    const auto key = std::pair(cell.at("arm").get<std::string>(), cell.at("metric").get<std::string>());
    std::vector<double> values;
    if (const auto found = samples.replicas.find(key); found != samples.replicas.end()) {
      for (const auto& [reroll, blocks] : found->second) {
        for (const auto& [block, list] : blocks) values.insert(values.end(), list.begin(), list.end());
      }
    }
    const Json expected = cell_statistics(values, cell.value("reason", ""));
    for (const auto& [name, value] : expected.items()) {
      if (cell.value(name, Json("absent")) != value) {
        fail(Exit::bad_data, "{}: cell {} of arm {}: {} is {}, its samples give {}", path, key.second, key.first, name,
             cell.value(name, Json("absent")).dump(), value.dump());
      }
    }
  }
}

// Every sampled metric must have its cell, where the run may show figures.
void check_no_cell_lost(const std::string& path, const Json& result, const Samples& samples) {
  if (result.at("cells").empty() && !result.at("complete").get<bool>()) return;  // it failed: it shows none
  for (const Json& warning : result.at("warnings")) {
    if (warning.at("code") == "planted_fault") return;
  }
  std::set<std::pair<std::string, std::string>> cells;
  for (const Json& cell : result.at("cells")) {
    cells.emplace(cell.at("arm").get<std::string>(), cell.at("metric").get<std::string>());
  }
  for (const auto& [key, values] : samples.replicas) {
    if (!cells.contains(key)) {
      fail(Exit::bad_data, "{}: the samples have {} of arm {}, the result has no such cell", path, key.second,
           key.first);
    }
  }
}

// The lookup rates must be what the cells say. Results of before they were written have none.
void check_lookup_rates(const std::string& path, const Json& result) {
  if (result.contains("lookup_rates") && result.at("lookup_rates") != lookup_rates(result.at("cells"))) {
    fail(Exit::bad_data, "{}/result.json: the lookup rates are not what the cells give", path);
  }
}

// The expanded scenario must be the one that its hash, here and in the conditions, is of.
void check_plan(const std::string& path, const Json& plan) {
  const auto stated = plan.at("sha256").get<std::string>();
  const std::string text = plan.at("plan").dump(2) + "\n";
  if (sha256_hex(std::as_bytes(std::span(text))) != stated) {
    fail(Exit::bad_data, "{}/plan.json: the plan is not the one whose hash is stated", path);
  }
}

// Every sample must be what the stored events give.
Samples check_samples(const std::string& path, const Json& result, const Json& plan, VerifyReport& report) {
  Derivation derivation(path, result, plan);
  report.events = derivation.events();
  if (!derivation.obstacle().empty()) {
    Samples samples = read_samples(path);
    if (derivation.events() == 0 && !samples.replicas.empty()) {
      fail(Exit::bad_data, "{}: has samples and no events that they could follow from", path);
    }
    report.not_derived = derivation.obstacle();
    return samples;
  }
  Samples samples = read_samples(path, [&](const SampleLine& line) { derivation.check(line); });
  // After a failed check a run keeps its events and no sample.
  if (!samples.replicas.empty()) derivation.check_none_missing(report.complete);
  report.samples_derived = derivation.derived();
  return samples;
}

// The part of the verdicts' basis that the plan states must be the plan's.
void check_basis(const std::string& path, const Json& result, const Json& plan) {
  const Json& evidence = result.at("evidence");
  const Json& experiment = plan.at("plan").at("experiment");
  const auto check = [&](const char* name, const char* key) {
    if (evidence.at(name) != experiment.at(key)) {
      fail(Exit::bad_data, "{}/result.json: evidence.{} is {}, the plan says {}", path, name, evidence.at(name).dump(),
           experiment.at(key).dump());
    }
  };
  for (const char* name : {"factor", "primary", "guards", "delta"}) check(name, name);
  check("planned_pairs", "pairs");
  if (evidence.at("conditions").at("complete") != result.at("complete")) {
    fail(Exit::bad_data, "{}/result.json: evidence.conditions.complete is not the result's", path);
  }
}

// Keys that comparisons and hypotheses have had from the first version on. Later versions add keys, which a result of
// an earlier one does not have; what it has must be right.
constexpr const char* kFirstKeys[] = {"factor",
                                      "arms",
                                      "metric",
                                      "pairs",
                                      "delta",
                                      "verdict",
                                      "reason",
                                      "text",
                                      "gate_exit",
                                      "chain",
                                      "primary",
                                      "guards",
                                      "exploratory",
                                      "control",
                                      "within_device",
                                      "advice",
                                      "broke_at",
                                      "links",
                                      "link",
                                      "status",
                                      "claimed",
                                      "bootstrap",
                                      "interval",
                                      "low",
                                      "high",
                                      "effect_ratio",
                                      "figures_verdict",
                                      "floor_log",
                                      "figures_reason",
                                      "holm_p",
                                      "log_deviation",
                                      "log_ratios",
                                      "t_test_p",
                                      "delta_used",
                                      "sign_test_p",
                                      "dropped_pairs",
                                      "two_clusters",
                                      "id",
                                      "statement",
                                      "standing",
                                      "why",
                                      "figures",
                                      "delta_raised_to_floor",
                                      "smallest_detectable_change"};

// Whether `found` says nothing but what `derived` does; `where` becomes the first key that is not right.
bool agrees(const Json& found, const Json& derived, std::string& where) {
  if (found.is_object() && derived.is_object()) {
    for (const auto& [key, value] : found.items()) {
      where = key;
      if (!derived.contains(key) || !agrees(value, derived.at(key), where)) return false;
    }
    for (const auto& [key, value] : derived.items()) {
      where = key;
      const bool first = std::find(std::begin(kFirstKeys), std::end(kFirstKeys), key) != std::end(kFirstKeys);
      if (first && !found.contains(key)) return false;
    }
    return true;
  }
  if (found.is_array() && derived.is_array() && found.size() == derived.size()) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!agrees(found[i], derived[i], where)) return false;
    }
    return true;
  }
  return found == derived;
}

// Every verdict must be what its basis and its samples give.
std::size_t check_verdicts(const std::string& path, const Json& result, const Samples& samples) {
  const Judgement derived = judge(result.at("evidence"), samples);
  const Json& found = result.at("comparisons");
  if (found.empty() && samples.replicas.empty()) return 0;
  if (found.size() != derived.comparisons.size()) {
    fail(Exit::bad_data, "{}/result.json: {} comparisons, its samples give {}", path, found.size(),
         derived.comparisons.size());
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& [key, value] : derived.comparisons[i].items()) {
      std::string where = key;
      Json one = Json::object();
      Json other = Json::object();
      if (found[i].contains(key)) one[key] = found[i].at(key);
      other[key] = value;
      if (!agrees(one, other, where)) {
        fail(Exit::bad_data, "{}/result.json: comparison {}: {} is {}, its samples give {}", path, i,
             where == key ? key : key + ", " + where, found[i].value(key, Json("absent")).dump(), value.dump());
      }
    }
    std::string where;
    if (!agrees(found[i], derived.comparisons[i], where)) {
      fail(Exit::bad_data, "{}/result.json: comparison {}: {} is not what the samples give", path, i, where);
    }
  }
  std::string where;
  if (!agrees(result.at("hypotheses"), derived.hypotheses, where)) {
    fail(Exit::bad_data, "{}/result.json: the hypotheses are not what the samples give", path);
  }
  if (result.contains("grid_caps") && !agrees(result.at("grid_caps"), derived.grid_caps, where)) {
    fail(Exit::bad_data, "{}/result.json: grid_caps is not what the samples give", path);
  }
  return found.size();
}

}  // namespace

std::size_t check_hashes(const std::string& path) {
  std::istringstream lines(read_file(path + "/MANIFEST.sha256"));
  std::set<std::string> listed;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.size() < 67 || line.compare(64, 2, "  ") != 0) {
      fail(Exit::bad_data, "{}/MANIFEST.sha256:{}: not a line of hash and name", path, number);
    }
    const std::string name = line.substr(66);
    const fs::path relative(name);
    if (relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end()) {
      fail(Exit::bad_data, "{}/MANIFEST.sha256:{}: {} leads out of the folder", path, number, name);
    }
    if (!fs::is_regular_file(path + "/" + name))
      fail(Exit::bad_data, "{}/{}: listed in the manifest, not there", path, name);
    if (sha256_file(path + "/" + name) != line.substr(0, 64)) {
      fail(Exit::bad_data, "{}/{}: its content is not what the manifest says", path, name);
    }
    listed.insert(name);
  }
  for (const std::string& name : run_files(path)) {
    if (!listed.contains(name)) fail(Exit::bad_data, "{}/{}: not in the manifest", path, name);
  }
  for (const char* name : {"result.json", "plan.json"}) {
    if (!listed.contains(name)) fail(Exit::bad_data, "{}: the manifest has no {}", path, name);
  }
  return listed.size();
}

bool ended_whole(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path + "/MANIFEST.sha256", error) || !fs::exists(path + "/result.json", error)) return false;
  const Json result = Json::parse(read_file(path + "/result.json"), nullptr, false);
  return result.is_object() && result.value("complete", Json()) == true;
}

VerifyReport verify(const std::string& path) {
  if (!fs::is_directory(path)) fail(Exit::usage, "{}: no such folder", path);
  if (!fs::exists(path + "/result.json") && !fs::exists(path + "/MANIFEST.sha256")) {
    fail(Exit::usage, "{}: not the folder of a run (no result.json)", path);
  }
  if (!fs::exists(path + "/MANIFEST.sha256")) {
    fail(Exit::bad_data, "{}: no MANIFEST.sha256: the run was stopped before it could end its record", path);
  }
  Json result;
  if (fs::exists(path + "/result.json")) result = Json::parse(read_file(path + "/result.json"), nullptr, false);
  check_version(path, result);
  VerifyReport report;
  report.files = check_hashes(path);
  if (!result.is_object() || result.value("schema", Json()) != "engram-bench/result" ||
      result.value("schema_version", Json()) != kResultVersion) {
    fail(Exit::bad_data, "{}/result.json: not a result of this program", path);
  }
  report.complete = result.value("complete", false);
  report.scenario = result.value("name", "");
  try {
    const Json plan = parse(path + "/plan.json");
    check_plan(path, plan);
    const Samples samples = check_samples(path, result, plan, report);
    check_cells(path, result, samples);
    check_no_cell_lost(path, result, samples);
    check_lookup_rates(path, result);
    check_basis(path, result, plan);
    report.verdicts = check_verdicts(path, result, samples);
  } catch (const Json::exception& error) {
    fail(Exit::bad_data, "{}: result.json or plan.json is not as this program writes it: {}", path, error.what());
  }
  return report;
}

std::vector<VerifyReport> verify_all(const std::vector<std::string>& paths) {
  std::vector<VerifyReport> reports(paths.size());
  std::vector<std::exception_ptr> errors(paths.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    for (std::size_t i = next++; i < paths.size() && !failed; i = next++) {
      try {
        reports[i] = verify(paths[i]);
      } catch (...) {
        errors[i] = std::current_exception();
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t most = std::max<std::size_t>(1, std::thread::hardware_concurrency());
    for (std::size_t t = 1; t < std::min(most, paths.size()); ++t) threads.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return reports;
}

}  // namespace eb::result
