#include "harness/result/stored.h"

#include <algorithm>
#include <set>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/evidence/judge.h"
#include "harness/result/verify.h"

namespace eb::result {

namespace {

// Re-roll numbers of the second run start here, so that no pair looks like two arms of one re-roll.
constexpr int kOtherRun = 1'000'000;

// Of a moment, not of the experiment; or judged by their own text (the plan's hash is the sum of its keys).
constexpr const char* kMoment[] = {"state_before", "state_after",     "gates",           "pcie_throughput",
                                   "gpu_clocks",   "scenario_sha256", "throttle_reasons"};

void flatten(const Json& value, const std::string& path, std::map<std::string, std::string>& out) {
  if (!value.is_object() || value.empty()) {
    out[path] = value.dump();
    return;
  }
  for (const auto& [key, entry] : value.items()) flatten(entry, path.empty() ? key : path + "." + key, out);
}

bool is_text_of_the_run(const std::string& key) {
  return key == "name" || key == "question" || key.starts_with("experiment.");
}

bool has_arm(const StoredRun& run, const std::string& arm) {
  const Json& arms = run.result.at("evidence").at("arms");
  return std::any_of(arms.begin(), arms.end(), [&](const Json& name) { return name == arm; });
}

void take_samples(Samples& out, const Samples& from, const std::string& arm, const std::string& as, int offset) {
  for (const auto& [key, rerolls] : from.replicas) {
    if (key.first != arm) continue;
    for (const auto& [reroll, blocks] : rerolls) out.replicas[{as, key.second}][reroll + offset] = blocks;
  }
  for (const auto& [key, rerolls] : from.ranks) {
    if (std::get<0>(key) != arm) continue;
    for (const auto& [reroll, blocks] : rerolls) {
      out.ranks[{as, std::get<1>(key), std::get<2>(key)}][reroll + offset] = blocks;
    }
  }
}

std::vector<int> rerolls_of(const Json& evidence, const std::string& arm) {
  std::vector<int> out;
  for (const Json& pair : evidence.at("pairs")) {
    if (pair.at("rerolls").contains(arm)) out.push_back(pair.at("rerolls").at(arm).get<int>());
  }
  return out;
}

}  // namespace

StoredRun read_run(const std::string& path) {
  static_cast<void>(verify(path));
  StoredRun run;
  run.path = path;
  run.result = Json::parse(read_file(path + "/result.json"));
  run.plan = Json::parse(read_file(path + "/plan.json")).at("plan");
  run.samples = read_samples(path);
  return run;
}

Judgement judge_again(const StoredRun& run) {
  Json evidence = run.result.at("evidence");
  const auto state = state_folder();
  const Json& key = evidence.at("floor_key");
  if (state && !key.at("fingerprint").get<std::string>().empty()) {
    plan::ExperimentSpec experiment;
    experiment.pairs = evidence.at("planned_pairs").get<int>();
    if (evidence.at("primary").is_string()) experiment.primary = evidence.at("primary").get<std::string>();
    experiment.guards = evidence.at("guards").get<std::vector<std::string>>();
    const FloorKey floor{key.at("machine"), key.at("fingerprint").get<std::string>(),
                         key.at("scenario").get<std::string>(), key.at("one_allocation").get<bool>()};
    const int made = evidence.value("stop", Json::object()).value("pairs_made", experiment.pairs);
    const Json now = floors_section(experiment, read_floor(*state, floor), made);
    for (auto& [metric, value] : evidence.at("floors").items()) {
      if (!value.is_number() && now.contains(metric)) value = now.at(metric);
    }
  }
  return judge(evidence, run.samples);
}

std::vector<Difference> differences(const StoredRun& left, const StoredRun& right,
                                    const std::vector<std::string>& declared) {
  std::map<std::string, std::string> a;
  std::map<std::string, std::string> b;
  const auto collect = [](const StoredRun& run, std::map<std::string, std::string>& out) {
    flatten(run.plan, "", out);
    std::erase_if(out, [](const auto& entry) { return is_text_of_the_run(entry.first); });
    for (const auto& [name, value] : run.result.at("conditions").items()) {
      if (std::find(std::begin(kMoment), std::end(kMoment), name) == std::end(kMoment)) {
        out["conditions." + name] = value.dump();
      }
    }
  };
  collect(left, a);
  collect(right, b);
  std::set<std::string> keys;
  for (const auto& [key, value] : a) keys.insert(key);
  for (const auto& [key, value] : b) keys.insert(key);
  std::vector<Difference> out;
  for (const std::string& key : keys) {
    const auto of = [&](const std::map<std::string, std::string>& map) {
      const auto found = map.find(key);
      return found == map.end() ? std::string("not there") : found->second;
    };
    if (of(a) == of(b) || std::find(declared.begin(), declared.end(), key) != declared.end()) continue;
    out.push_back({key, of(a), of(b)});
  }
  return out;
}

Judgement judge_runs(const StoredRun& left, const std::string& left_arm, const StoredRun& right,
                     const std::string& right_arm, const std::string& factor) {
  for (const auto& [run, arm] : {std::pair(&left, &left_arm), std::pair(&right, &right_arm)}) {
    if (!has_arm(*run, *arm)) fail(Exit::usage, "{}: no judged arm {}", run->path, *arm);
  }
  for (const Json& arm : left.result.at("arms")) {
    if (arm.at("name") == left_arm && !arm.at("injected").is_null()) {
      fail(Exit::usage, "{}: extra work was planted in arm {}: it can be no baseline", left.path, left_arm);
    }
  }
  const Json& a = left.result.at("evidence");
  const Json& b = right.result.at("evidence");
  Json evidence = a;
  evidence["method"] = evidence::kMethod;
  evidence["factor"] = factor.empty() ? Json(nullptr) : Json(factor);
  evidence["arms"] = {"baseline", "candidate"};
  evidence["early_arms"] = Json::array();
  for (const char* part : {"grid_caps", "cites", "counters"}) evidence.erase(part);  // of the left run's own arms
  evidence["joint_arms"] = Json::object();
  const std::vector<int> first = rerolls_of(a, left_arm);
  const std::vector<int> second = rerolls_of(b, right_arm);
  evidence["pairs"] = Json::array();
  for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    evidence["pairs"].push_back(
        {{"pair", i}, {"rerolls", {{"baseline", first[i]}, {"candidate", second[i] + kOtherRun}}}});
  }
  evidence["planned_pairs"] = std::min(first.size(), second.size());
  for (const Json& gate : b.at("failed_gates")) evidence["failed_gates"].push_back(gate);
  for (auto& [name, value] : evidence["conditions"].items()) {
    const bool must_hold = name == "complete" || name == "checks_passed";
    const bool other = b.at("conditions").at(name).get<bool>();
    value = must_hold ? value.get<bool>() && other : value.get<bool>() || other;
  }
  Json observed = Json::array();
  const auto pages = [&](const Json& from, const std::string& arm, const char* as) {
    for (Json one : from.at("pages").at("observed")) {
      if (one.at("arm") != arm || one.at("pair").get<std::size_t>() >= std::min(first.size(), second.size())) continue;
      one["arm"] = as;
      observed.push_back(std::move(one));
    }
  };
  pages(a, left_arm, "baseline");
  pages(b, right_arm, "candidate");
  evidence["pages"]["observed"] = observed;
  evidence["pages"]["one_allocation"] = false;
  evidence["pages"]["claim"] = factor == "storage.policy" || factor == "storage.copies" ? "move" : "same";
  evidence["pages"]["ranks"] = Json::array();
  Samples samples;
  take_samples(samples, left.samples, left_arm, "baseline", 0);
  take_samples(samples, right.samples, right_arm, "candidate", kOtherRun);
  return judge(evidence, samples);
}

}  // namespace eb::result
