#include "harness/plan/unbuilt.h"

#include "harness/base/error.h"
#include "harness/plan/document.h"

namespace eb::plan {

namespace {

std::string refusal(const Unbuilt& entry, const std::string& value) {
  return fmt::format("{} is not in this version of engram-bench; use {}", value, entry.instead);
}

bool matches(const Unbuilt& entry, const std::string& value) {
  return entry.value == value || value.starts_with(entry.value + ":");
}

}  // namespace

const std::vector<Unbuilt>& unbuilt() {
  static const std::vector<Unbuilt> list{
      {"model.preset", "deepep-default", "a preset whose ids come from the hash"},
      {"workload.kind", "replay", "steps"},
      {"workload.kind", "remote", "steps"},
  };
  return list;
}

void refuse_unbuilt(const std::string& path, const std::string& value) {
  for (const Unbuilt& entry : unbuilt()) {
    if (entry.path == path && matches(entry, value)) throw Error(Exit::usage, refusal(entry, value));
  }
  fail(Exit::usage, "{} is not in this version of engram-bench", value);
}

void check_unbuilt(const Scenario& scenario) {
  const Json document = write_document(scenario, nullptr);
  for (const Unbuilt& entry : unbuilt()) {
    const Json* found = find_in_document(document, entry.path);
    if (found == nullptr || !found->is_string()) continue;
    const auto value = found->get<std::string>();
    if (matches(entry, value)) fail(Exit::usage, "{}: {}", entry.path, refusal(entry, value));
  }
}

}  // namespace eb::plan
