// The generated part of docs/scenario.md: every key with its value, default and meaning, which backing serves which
// table mode, and what this version does not build.
#include "harness/plan/checks.h"
#include "harness/plan/keys.h"
#include "harness/plan/unbuilt.h"

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
      "### Which backing serves which table mode\n\n| backing | shared | private | dp_sharded |\n|---|---|---|---|\n";
  const auto mark = [](bool valid) { return valid ? "yes" : "no"; };
  for (const BackingRule& rule : backing_rules()) {
    page += "| `" + std::string(name(rule.backing)) + "` | " + mark(rule.shared) + " | " + mark(rule.private_) + " | " +
            mark(rule.dp_sharded) + " |\n";
  }
  page +=
      "\n`storage.policy` `stock` goes with backing `shm`, table mode `shared`, pre-touch `none` and one copy only. "
      "The "
      "bounds `hbm` and `stub` are controls, never arms.\n\n";
  page +=
      "### Not in this version\n\nThese values are known, checked and then refused.\n\n| key | value | use instead "
      "|\n|---|---|---|\n";
  for (const Unbuilt& entry : unbuilt()) {
    page += "| `" + entry.path + "` | `" + entry.value + "` | " + entry.instead + " |\n";
  }
  return page;
}

}  // namespace eb::plan
