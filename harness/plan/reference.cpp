// The generated part of docs/scenario.md: every key with its value, default and meaning, which backing serves which
// table mode, and what this version does not build.
#include "harness/plan/joint_arms.h"
#include "harness/plan/keys.h"
#include "harness/plan/unbuilt.h"
#include "harness/plan/validity.h"

namespace eb::plan {

namespace {

// "storage" of "storage.policy"; "experiment"; the top level is "".
std::string section_of(const Key& key) {
  const std::size_t dot = key.path.find('.');
  return dot == std::string::npos ? "" : key.path.substr(0, dot);
}

std::string cell(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2))
    text.replace(at, 1, "\\|");
  return text;
}

std::string default_of(const Key& key) {
  if (key.required) return "required";
  if (key.inherits) return "from the preset";
  return "`" + key.fallback.dump() + "`";
}

void add_section(std::string& page, const std::string& section) {
  page += section.empty() ? "### Top level\n\n" : "### " + section + "\n\n";
  page += "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const Key& key : keys()) {
    if (section_of(key) != section) continue;
    std::string value = key.expected();
    if (!key.unit.empty()) value += " (" + key.unit + ")";
    page += "| `" + key.path + "` | " + cell(value) + " | " + cell(default_of(key)) + " | " + cell(key.doc) + " |\n";
  }
  page += "\n";
}

}  // namespace

std::string scenario_reference() {
  std::string page;
  std::string last = "-";
  for (const Key& key : keys()) {
    if (section_of(key) == last) continue;
    last = section_of(key);
    add_section(page, last);
  }
  page +=
      "### What goes with what\n\nEvery combination of a line's values is valid; a combination that no line has is "
      "refused (exit 2).\n\n" +
      validity_reference() + "\n";
  page +=
      "### What may change together\n\nAn arm changes one key, the factor. `experiment.joint_arms` may hold, beside "
      "the "
      "arms of this factor, an arm that changes these keys at once:\n\n" +
      joint_reference() + "\n";
  page +=
      "### Not in this version\n\nThese values are known, checked and then refused.\n\n| key | value | use instead "
      "|\n|---|---|---|\n";
  for (const Unbuilt& entry : unbuilt()) {
    page += "| `" + entry.path + "` | `" + entry.value + "` | " + entry.instead + " |\n";
  }
  return page;
}

}  // namespace eb::plan
