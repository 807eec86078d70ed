#include "harness/result/cites.h"

#include <algorithm>
#include <filesystem>

#include "harness/base/error.h"
#include "harness/base/sha256.h"
#include "harness/result/stored.h"

namespace eb::result {

namespace {

// A1 moves one copy from node to node: every arm binds to nodes, and the arms' nodes differ.
bool is_a1(const Json& result) {
  if (result.at("evidence").at("factor") != "storage.policy") return false;
  std::vector<std::string> places;
  for (const Json& arm : result.at("arms")) {
    if (arm.at("control") == true) continue;
    const Json policy = arm.at("overrides").value("storage.policy", Json());
    if (!policy.is_string() || !policy.get<std::string>().starts_with("bind:")) return false;
    places.push_back(policy.get<std::string>());
  }
  return places.size() > 1;
}

const char* kind_of(const Json& result) {
  if (is_a1(result)) return "A1";
  return result.at("evidence").at("factor") == "prefetch.submit" ? "B1" : nullptr;
}

Json cite_json(const CitedRun& cite, const FloorKey& key) {
  if (!std::filesystem::is_directory(cite.folder)) {
    fail(Exit::usage, "experiment.cites {}: no such folder; paths are relative to the working directory", cite.cited);
  }
  const StoredRun run = read_run(cite.folder);
  const Json& evidence = run.result.at("evidence");
  const char* kind = kind_of(run.result);
  const auto fingerprint = evidence.at("floor_key").at("fingerprint").get<std::string>();
  Json verdicts = Json::array();
  for (const Json& comparison : judge_again(run).comparisons) {
    const Json& chain = comparison.at("chain");
    verdicts.push_back({{"arms", comparison.at("arms")},
                        {"verdict", comparison.at("verdict")},
                        {"reason", comparison.at("reason")},
                        {"pages", chain.at("links").at(0).at("status")},
                        {"text", comparison.at("text")}});
  }
  return {{"cited", cite.cited},
          {"experiment", kind == nullptr ? Json(nullptr) : Json(kind)},
          {"name", run.result.at("name")},
          {"result_sha256", sha256_file(cite.folder + "/result.json")},
          {"fingerprint", fingerprint},
          {"same_machine", !fingerprint.empty() && fingerprint == key.fingerprint},
          {"complete", run.result.at("complete")},
          {"verdicts", verdicts}};
}

// Void and missing verdicts are no ground; an inconclusive one is not either.
std::string said(const Json& cite) {
  if (cite.at("same_machine") != true || cite.at("complete") != true) return "";
  std::string text;
  for (const Json& one : cite.at("verdicts")) {
    const Json& verdict = one.at("verdict");
    if (verdict != "better" && verdict != "worse" && verdict != "same") continue;
    if (cite.at("experiment") == "A1" && one.at("pages") != "held") continue;  // the pages must have moved
    text += fmt::format("{}{}", text.empty() ? "" : "; ", one.at("text").get<std::string>());
  }
  return text.empty() ? "" : fmt::format("{}: {}", cite.at("name").get<std::string>(), text);
}

}  // namespace

Json read_cites(const std::vector<CitedRun>& cites, const FloorKey& key) {
  Json out = Json::array();
  for (const CitedRun& cite : cites) out.push_back(cite_json(cite, key));
  return out;
}

CitedGround ground_of(const Json& cites) {
  CitedGround ground;
  for (const Json& cite : cites) {
    if (cite.at("experiment") == "A1" && ground.a1.empty()) ground.a1 = said(cite);
    if (cite.at("experiment") == "B1" && ground.b1.empty()) ground.b1 = said(cite);
  }
  return ground;
}

}  // namespace eb::result
