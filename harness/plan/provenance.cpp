#include "harness/plan/provenance.h"

#include <fmt/format.h>

#include <vector>

namespace eb::plan {

namespace {

// What vLLM calls this table mode, in words: its option names are not repeated here, since they change over versions.
const char* stock_text(TableMode mode) {
  switch (mode) {
    case TableMode::shared:
      return "vLLM default (DP-shared Engram over host memory)";
    case TableMode::private_:
      return "vLLM with sharing off (each replica holds its tables in host memory)";
    case TableMode::dp_sharded:
      return "vLLM with Engram heads sharded over TP x EDP";
  }
  return "";
}

// What says where the pages lie.
std::vector<std::string> place_reasons(const StorageSpec& storage, TableMode mode) {
  std::vector<std::string> reasons;
  if (storage.copies == Copies::per_numa_node) {
    reasons.emplace_back("a copy on each NUMA node, bound there before registration");
    return reasons;
  }
  switch (storage.policy.kind) {
    case PolicyKind::stock:
      break;
    case PolicyKind::none:
      if (mode == TableMode::shared) reasons.emplace_back("barriers between the stages of the table's life");
      break;
    default:
      reasons.push_back(fmt::format("policy {} set before registration", storage.policy.text));
  }
  return reasons;
}

std::vector<std::string> storage_reasons(const StorageSpec& storage, TableMode mode) {
  std::vector<std::string> reasons = place_reasons(storage, mode);
  if (storage.pretouch != PretouchKind::none) reasons.emplace_back("pre-touch before registration");
  if (mode == TableMode::shared && storage.backing != Backing::shm) {
    reasons.push_back(fmt::format("backing {}", name(storage.backing)));
  }
  if (storage.backing == Backing::cuda_host_numa || storage.backing == Backing::shm_thp) {
    if (mode != TableMode::shared) reasons.push_back(fmt::format("backing {}", name(storage.backing)));
  }
  if (storage.backing == Backing::hugetlb_2m || storage.backing == Backing::hugetlb_1g) {
    if (mode != TableMode::shared) reasons.push_back(fmt::format("backing {}", name(storage.backing)));
  }
  if (storage.layout == Layout::interleaved) reasons.emplace_back("interleaved layout");
  if (storage.register_order != RegisterOrder::concurrent) {
    reasons.push_back(fmt::format("registration {}", name(storage.register_order)));
  }
  if (storage.bind_ranks != "none") reasons.push_back(fmt::format("ranks bound {}", storage.bind_ranks));
  return reasons;
}

void add_prefetch_reasons(const PrefetchSpec& prefetch, std::vector<std::string>& reasons) {
  if (prefetch.submit == Submit::at_consume) reasons.emplace_back("lookup submitted at its consumer");
  if (prefetch.streams == Streams::per_layer) {
    reasons.emplace_back("a prefetch stream a layer (other vLLM revisions than the pinned one)");
  }
  if (prefetch.grid_cap.text != "half") {
    reasons.push_back(fmt::format("background grid cap {} instead of half the units", prefetch.grid_cap.text));
  }
  if (prefetch.order == Order::table) reasons.emplace_back("rows read in table order");
}

}  // namespace

Provenance provenance_of(const Scenario& scenario) {
  if (scenario.storage.backing == Backing::stub) return {true, "bound: no lookup at all"};
  if (scenario.storage.backing == Backing::hbm) return {true, "bound: tables in device memory"};
  const TableMode mode = scenario.parallel.table_mode;
  std::vector<std::string> reasons = storage_reasons(scenario.storage, mode);
  if (scenario.device.rank_map == "shard-near") reasons.emplace_back("ranks mapped shard-near");
  add_prefetch_reasons(scenario.prefetch, reasons);
  if (reasons.empty()) return {false, stock_text(mode)};
  return {true, fmt::format("{}", fmt::join(reasons, "; "))};
}

}  // namespace eb::plan
