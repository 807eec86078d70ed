#include "harness/plan/joint_arms.h"

#include <algorithm>

#include "harness/base/error.h"

namespace eb::plan {

namespace {

std::string text_of(const JointChange& joint) {
  std::string text;
  for (const auto& [key, value] : joint.changes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " with ", key, value);
  }
  return text;
}

bool matches(const JointChange& joint, const std::vector<std::pair<std::string, Json>>& changes) {
  return joint.changes.size() == changes.size() &&
         std::all_of(joint.changes.begin(), joint.changes.end(), [&](const auto& one) {
           return std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
             return change.first == one.first && change.second == one.second;
           });
         });
}

}  // namespace

const std::vector<JointChange>& joint_changes() {
  static const std::vector<JointChange> list{
      {"storage.copies",
       {{"storage.policy", "consumer"}, {"device.rank_map", "shard-near"}},
       "pages can lie near all readers of a shard only where the map has brought these readers to one NUMA node"},
  };
  return list;
}

void check_joint_change(const std::string& factor, const std::vector<std::pair<std::string, Json>>& changes) {
  std::vector<std::string> allowed;
  for (const JointChange& joint : joint_changes()) {
    if (joint.factor != factor) continue;
    if (matches(joint, changes)) return;
    allowed.push_back(text_of(joint));
  }
  if (allowed.empty()) {
    fail(Exit::usage,
         "arms of the factor {} change this key alone: nothing may change along with it; make each change an "
         "experiment of its own",
         factor);
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : changes) keys.push_back(fmt::format("{}={}", key, value.dump()));
  fail(Exit::usage, "an arm changes one key, the factor {}; all that may change together beside it is {}, found {}",
       factor, fmt::join(allowed, "; "), keys.empty() ? "nothing" : fmt::format("{}", fmt::join(keys, ", ")));
}

std::string joint_reference() {
  std::string page = "| `experiment.factor` | changed together | because |\n|---|---|---|\n";
  for (const JointChange& joint : joint_changes()) {
    page += fmt::format("| `{}` | {} | {} |\n", joint.factor, text_of(joint), joint.why);
  }
  return page;
}

}  // namespace eb::plan
