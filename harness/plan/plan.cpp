// From the scenario's text to the plan: settings, arms, controls, the expanded text and its hash.
#include <algorithm>
#include <filesystem>
#include <set>
#include <span>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"
#include "harness/plan/checks.h"
#include "harness/plan/document.h"
#include "harness/plan/joint_arms.h"
#include "harness/plan/provenance.h"

namespace eb::plan {

namespace {

constexpr std::size_t kLargestFile = 16u << 20;

// Runs `work` and puts `where` before the text of its error.
template <typename Work>
void named(const std::string& where, Work work) {
  try {
    work();
  } catch (const Error& error) {
    fail(error.exit(), "{}: {}", where, error.what());
  }
}

bool has_any_prefix(const std::string& path, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) { return path.starts_with(prefix); });
}

// A key that arms and controls may change.
void check_changeable(const std::string& path) {
  if (has_any_prefix(path, {"model.", "parallel.", "device.", "storage.", "prefetch.", "workload.", "fault."})) return;
  Json scratch = Json::object();
  set_in_document(scratch, path, Json());  // names the nearest key where there is none
  fail(Exit::usage,
       "{} cannot differ between arms; what can lies under model, parallel, device, storage, prefetch or "
       "workload",
       path);
}

void check_arm_name(const std::string& arm) {
  if (!is_name(arm, 64)) {
    fail(Exit::usage, "the name {} of an arm or control is not 1 to 64 letters, digits, dots, hyphens and underscores",
         printable(arm));
  }
}

// Stock vLLM has no pre-touch: who turns a scenario into stock need not say so again. A pre-touch stated beside the
// policy stays and is refused.
std::vector<std::pair<std::string, Json>> with_stock(std::vector<std::pair<std::string, Json>> overrides) {
  const auto sets = [&](const char* path, const Json* value) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const auto& entry) {
      return entry.first == path && (value == nullptr || entry.second == *value);
    });
  };
  const Json stock = "stock";
  if (sets("storage.policy", &stock) && !sets("storage.pretouch", nullptr)) {
    overrides.emplace_back("storage.pretouch", "none");
  }
  return overrides;
}

Arm make_arm(const Json& document, const std::string& folder, const std::string& arm_name, bool control,
             const std::vector<std::pair<std::string, Json>>& overrides, const std::string& factor) {
  Arm arm;
  arm.name = arm_name;
  arm.control = control;
  check_arm_name(arm_name);
  named(fmt::format("{} {}", control ? "control" : "arm", arm_name), [&] {
    Json own = document;
    own.erase("experiment");
    for (const auto& [path, value] : with_stock(overrides)) {
      check_changeable(path);
      set_in_document(own, path, value);
      arm.overrides[path] = value.dump();
    }
    check_document(own);
    read_document(own, folder, arm.scenario, nullptr);
    check_scenario(arm.scenario, control, factor);
  });
  const Provenance provenance = provenance_of(arm.scenario);
  arm.research = provenance.research;
  arm.provenance = provenance.text;
  return arm;
}

void add_arms(const Json& document, const std::string& folder, Plan& plan) {
  const std::string& factor = plan.experiment.factor;
  const Json* arms = find_in_document(document, "experiment.arms");
  if (arms != nullptr && arms->empty()) fail(Exit::usage, "experiment.arms is empty; name at least two arms");
  const std::string& aa = plan.experiment.aa;
  if (!aa.empty() && (!factor.empty() || arms != nullptr)) {
    fail(Exit::usage,
         "experiment.aa compares the scenario with itself; leave experiment.factor and experiment.arms out");
  }
  if (factor.empty()) {
    if (arms != nullptr) fail(Exit::usage, "experiment.arms needs experiment.factor, the key that the arms change");
    for (const char* arm_name : {"A", "A2"}) {
      if (aa.empty() && !plan.arms.empty()) break;
      Arm arm;
      arm.name = arm_name;
      arm.scenario = plan.base;
      check_scenario(arm.scenario, false, factor);
      const Provenance provenance = provenance_of(arm.scenario);
      arm.research = provenance.research;
      arm.provenance = provenance.text;
      plan.arms.push_back(arm);
    }
    return;
  }
  named("experiment.factor", [&] { check_changeable(factor); });
  if (arms == nullptr) fail(Exit::usage, "experiment.factor {} needs experiment.arms, its values", factor);
  if (arms->size() < 2) {
    fail(Exit::usage, "experiment.arms names one arm, {}; a factor needs two to compare", arms->begin().key());
  }
  for (const auto& [arm_name, value] : arms->items()) {
    plan.arms.push_back(make_arm(document, folder, arm_name, false, {{factor, value}}, factor));
  }
}

// Arms that a scenario declares to change several keys at once. The factor stays at the baseline's value.
void add_joint_arms(const Json& document, const std::string& folder, Plan& plan) {
  const Json* joint_arms = find_in_document(document, "experiment.joint_arms");
  if (joint_arms == nullptr || joint_arms->empty()) return;
  const std::string& factor = plan.experiment.factor;
  if (factor.empty())
    fail(Exit::usage, "experiment.joint_arms stand beside arms of experiment.factor, which is missing");
  for (const auto& [arm_name, changes] : joint_arms->items()) {
    for (const Arm& arm : plan.arms) {
      if (arm.name == arm_name) fail(Exit::usage, "{} names two arms", printable(arm_name));
    }
    std::vector<std::pair<std::string, Json>> overrides;
    for (const auto& [path, value] : changes.items()) overrides.emplace_back(path, value);
    named("arm " + printable(arm_name), [&] { check_joint_change(factor, overrides); });
    std::vector<std::string> keys;
    for (const auto& [path, value] : overrides) keys.push_back(path);
    overrides.insert(overrides.begin(), {factor, Json::parse(plan.arms.front().overrides.at(factor))});
    plan.arms.push_back(make_arm(document, folder, arm_name, false, overrides, factor));
    plan.arms.back().joint_keys = std::move(keys);
  }
}

void check_arms_differ(const Plan& plan) {
  for (std::size_t i = 0; i < plan.arms.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (to_json(plan.arms[i].scenario) == to_json(plan.arms[j].scenario)) {
        const std::string& factor = plan.experiment.factor;
        fail(Exit::usage, "the arms {} and {} are equal: both have {} {}", plan.arms[j].name, plan.arms[i].name, factor,
             plan.arms[i].overrides.at(factor));
      }
    }
  }
}

void add_controls(const Json& document, const std::string& folder, Plan& plan) {
  const Json* controls = find_in_document(document, "experiment.controls");
  if (controls == nullptr) return;
  for (const auto& [control_name, changes] : controls->items()) {
    for (const Arm& arm : plan.arms) {
      if (arm.name == control_name) fail(Exit::usage, "{} names an arm and a control", control_name);
    }
    if (changes.empty()) fail(Exit::usage, "control {}: changes no key", printable(control_name));
    std::vector<std::pair<std::string, Json>> overrides;
    for (const auto& [path, value] : changes.items()) overrides.emplace_back(path, value);
    plan.arms.push_back(make_arm(document, folder, control_name, true, overrides, plan.experiment.factor));
  }
}

void check_injection(const Plan& plan) {
  const InjectSpec& inject = plan.experiment.inject;
  if (inject.stage.empty()) {
    if (inject.percent > 0 || !inject.arm.empty()) fail(Exit::usage, "experiment.inject needs experiment.inject.stage");
    return;
  }
  if (inject.percent <= 0) fail(Exit::usage, "experiment.inject.percent must be above 0");
  for (std::size_t i = 0; i < plan.arms.size(); ++i) {
    const Arm& arm = plan.arms[i];
    if (arm.control || arm.name != inject.arm) continue;
    if (i == 0)
      fail(Exit::usage, "experiment.inject.arm {} is the baseline; plant the effect in another arm", arm.name);
    if (arm.scenario.workload.warmup < 1) {
      fail(Exit::usage, "experiment.inject needs workload.warmup: the stage is timed before work is added");
    }
    if (inject.stage != "lookup" && arm.scenario.workload.kind == WorkloadKind::lookup) {
      fail(Exit::usage, "experiment.inject.stage {}: workload.kind lookup has no other stage than lookup",
           inject.stage);
    }
    if (inject.stage == "gather" && arm.scenario.parallel.tp == 1) {
      fail(Exit::usage, "experiment.inject.stage gather: with parallel.tp 1 nothing is gathered");
    }
    return;
  }
  fail(Exit::usage, "experiment.inject.arm {} is no arm of this experiment", printable(inject.arm));
}

void check_coresident(const Plan& plan) {
  if (!plan.experiment.coresident) return;
  const std::string& factor = plan.experiment.factor;
  if (plan.arms_share_allocation) {
    fail(Exit::usage,
         "experiment.coresident is for arms that allocate anew; {} share one allocation already, leave it out",
         factor.empty() ? "these arms" : "arms of " + factor);
  }
  if (!factor.empty() && !factor.starts_with("storage.")) {
    fail(Exit::usage, "experiment.coresident needs a factor of storage.*, found {}", factor);
  }
}

void lay_over(Json& document, const std::string& text) {
  const Json overlay = parse_document(text);
  const auto text_at = [](const Json& json, const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string name = text_at(document, "name");
  const std::string suffix = text_at(overlay, "name");
  const std::string question = text_at(document, "question");
  const std::string more = text_at(overlay, "question");
  document.merge_patch(overlay);
  if (!name.empty() && !suffix.empty()) document["name"] = name + "-" + suffix;
  if (!question.empty() && more.starts_with("...")) document["question"] = question + " " + more;
}

// The whole plan as a scenario file that says everything: reading it gives the same plan. Paths stay as written, so
// that the hash is the same wherever the files lie.
std::string expand(const Json& document, const Plan& plan) {
  Json expanded = write_document(plan.base, &plan.experiment);
  for (const Key& key : keys()) {
    const Json* written = key.path_value ? find_in_document(document, key.path) : nullptr;
    if (written != nullptr) set_in_document(expanded, key.path, *written);
  }
  for (const char* path : {"experiment.arms", "experiment.joint_arms", "experiment.controls"}) {
    const Json* written = find_in_document(document, path);
    if (written != nullptr) set_in_document(expanded, path, *written);
  }
  return expanded.dump(2) + "\n";
}

}  // namespace

Plan parse_plan(const std::string& text, const std::string& folder, const std::vector<Setting>& settings,
                const std::vector<Overlay>& overlays) {
  if (text.size() > kLargestFile)
    fail(Exit::usage, "a scenario of {} bytes; at most {} are read", text.size(), kLargestFile);
  Json document = parse_document(text);
  for (const Overlay& overlay : overlays) {
    named("--with " + overlay.path, [&] { lay_over(document, overlay.text); });
  }
  for (const Setting& setting : settings) {
    named("--set " + printable(setting.key), [&] { apply_setting(document, setting); });
  }
  const Json* policy = find_in_document(document, "storage.policy");
  if (policy != nullptr && *policy == "stock" && find_in_document(document, "storage.pretouch") == nullptr) {
    set_in_document(document, "storage.pretouch", "none");
  }
  check_document(document);
  Plan plan;
  read_document(document, folder, plan.base, &plan.experiment);
  add_arms(document, folder, plan);
  add_joint_arms(document, folder, plan);
  if (!plan.experiment.factor.empty()) check_arms_differ(plan);
  add_controls(document, folder, plan);
  check_injection(plan);
  const std::string& factor = plan.experiment.factor;
  plan.arms_share_allocation = plan.experiment.aa == "together" || (factor.empty() && plan.experiment.aa.empty()) ||
                               has_any_prefix(factor, {"prefetch.", "workload."});
  check_coresident(plan);
  plan.expanded_json = expand(document, plan);
  plan.sha256 = sha256_hex(std::as_bytes(std::span(plan.expanded_json)));
  return plan;
}

Plan load_plan(const std::string& path, const std::vector<Setting>& settings, const std::vector<Overlay>& overlays) {
  std::string text;
  try {
    text = read_file(path, kLargestFile);
  } catch (const Error& error) {
    fail(Exit::usage, "scenario file {}", error.what());
  }
  Plan plan;
  const std::filesystem::path absolute = std::filesystem::absolute(path);
  named(path, [&] { plan = parse_plan(text, absolute.parent_path().string(), settings, overlays); });
  plan.source_path = path;
  for (const Overlay& overlay : overlays) plan.source_path += " + " + overlay.path;
  return plan;
}

std::string to_json(const Scenario& scenario) { return write_document(scenario, nullptr).dump(); }

Scenario scenario_from_json(const std::string& text) {
  const Json document = parse_document(text);
  check_document(document);
  Scenario scenario;
  read_document(document, "", scenario, nullptr);
  return scenario;
}

}  // namespace eb::plan
