#include "tests/contract/combinations.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/base/error.h"
#include "harness/plan/validity.h"
#include "harness/plan/values.h"
#include "placement/topology.h"

namespace eb::contract {

namespace {

using Json = nlohmann::ordered_json;

// Nodes of this machine that a policy can name; the same words in the plan, whatever machine it is for.
std::vector<int> usable_nodes() {
  static const std::vector<int> nodes = [] {
    std::vector<int> found;
    const placement::Topology topology = placement::read_topology(placement::Devices::skip);
    for (const placement::NumaNode& node : topology.nodes) {
      if (node.allowed && node.bytes > 0) found.push_back(node.id);
    }
    return found;
  }();
  return nodes;
}

std::string policy_text(plan::PolicyKind kind) {
  const std::vector<int> nodes = usable_nodes();
  switch (kind) {
    case plan::PolicyKind::bind:
    case plan::PolicyKind::preferred:
      return fmt::format("{}:{}", plan::name(kind), nodes.back());
    case plan::PolicyKind::interleave:
      return "interleave:all";
    case plan::PolicyKind::weighted: {
      std::string text = "weighted:";
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        text += fmt::format("{}{}={}", i == 0 ? "" : ",", nodes[i], i == 0 ? 3 : 1);
      }
      return text;
    }
    default:
      return plan::name(kind);
  }
}

}  // namespace

std::string Combination::text() const {
  std::string text =
      fmt::format("{}_{}_{}_{}", plan::name(mode), plan::name(backing), plan::name(policy), plan::name(copies));
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

std::string scenario_text(const Combination& combination, const std::string& backend) {
  const bool stock = combination.policy == plan::PolicyKind::stock;
  const bool by_reader = combination.policy == plan::PolicyKind::consumer;
  const bool per_node = combination.copies != plan::Copies::one;
  Json scenario = {
      {"name", "contract"},
      {"question", "Do all readers see the tables?"},
      {"model",
       {{"preset", "deepseek-v4.1-flash"},
        {"table_scale", 0.00001},
        {"hidden_size", 16},
        {"hc_mult", 1},
        {"backbone", {{"layers", 15}, {"weight_bytes_per_layer", 1024}, {"flops_per_token_per_layer", 2048}}}}},
      {"parallel", {{"tp", 2}, {"dp", 2}, {"table_mode", plan::name(combination.mode)}}},
      // A shard's readers on one node for consumer; on all nodes where each has a copy.
      {"device", {{"backend", backend}, {"rank_map", by_reader ? "shard-near" : "default"}}},
      {"storage",
       {{"backing", plan::name(combination.backing)},
        {"policy", policy_text(combination.policy)},
        {"copies", plan::name(combination.copies)},
        {"pretouch", stock ? "none" : "parallel:2"},
        {"bind_ranks", by_reader || per_node ? "device-local" : "none"}}},
      {"workload",
       {{"kind", "steps"},
        {"batches", Json::array({{{"prefill", {5}}, {"decode", 1}, {"replica", 0}},
                                 {{"decode", 2}, {"replica", 1}},
                                 {{"prefill", Json::array()}, {"decode", 0}, {"replica", 1}}})},
        {"tokens", {{"kind", "uniform"}}},  // the cheapest to make: ids are compared whatever they are
        {"steps", 2}}},
      {"experiment", {{"pairs", 1}, {"blocks", 1}}},
      {"seed", 7}};
  if (backend == "fake") scenario["prefetch"] = {{"graph", "piecewise"}};
  return scenario.dump();
}

const std::vector<Combination>& valid_combinations() {
  static const std::vector<Combination> list = [] {
    std::vector<Combination> found;
    for (const auto& [mode_name, mode] : plan::table_modes()) {
      for (const auto& [backing_name, backing] : plan::backings()) {
        for (const auto& [policy_name, policy] : plan::policy_kinds()) {
          for (const auto& [copies_name, copies] : plan::copies_kinds()) {
            if (backing == plan::Backing::hbm || backing == plan::Backing::stub) continue;
            if (plan::is_valid({mode, backing, policy, copies})) found.push_back({mode, backing, policy, copies});
          }
        }
      }
    }
    return found;
  }();
  return list;
}

}  // namespace eb::contract
