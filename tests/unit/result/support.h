// A small plan, layout and events for tests of the result writer.
#pragma once

#include <string>
#include <vector>

#include "harness/result/run_writer.h"
#include "tests/unit/measure/synthetic.h"
#include "tests/unit/temporary_folder.h"

namespace eb::result {

// Preset tiny at TP2 x DP2, shared, two arms of prefetch.submit.
inline plan::Plan tiny_plan() {
  return plan::parse_plan(R"({
    "name": "tiny", "question": "Does it hold?",
    "model": {"preset": "tiny"},
    "parallel": {"tp": 2, "dp": 2, "table_mode": "shared"},
    "workload": {"kind": "steps", "batches": [{"decode": 4}], "steps": 2},
    "experiment": {"factor": "prefetch.submit", "arms": {"A": "early", "B": "at_consume"}, "pairs": 1, "blocks": 2}
  })",
                          ".", {});
}

inline RunInput run_input(const plan::Plan& plan) {
  RunInput input;
  input.plan = &plan;
  for (const plan::Arm& arm : plan.arms) {
    input.geometries.push_back(engram::make_geometry(arm.scenario.model.base, arm.scenario.model.table_scale));
    input.layouts.push_back(plan::make_layout(arm.scenario, input.geometries.back()));
  }
  input.topology = placement::synthetic_topology("pack:1 numa:1 core:2 pu:1");
  input.command_line = "engram-bench run tiny.json";
  return input;
}

// Layer 0 alone: the tiny preset's one table.
// `lookup_ns` and `step_ns` are added to the lookups' and the steps' ends.
inline std::vector<rank::EventRecord> tiny_events(std::uint16_t slot, std::int64_t steps, std::int64_t shift = 0,
                                                  std::int64_t lookup_ns = 0, std::int64_t step_ns = 0) {
  using K = rank::EventKind;
  measure::Script script(slot);
  for (std::int64_t s = 0; s < steps; ++s) {
    const std::int64_t base = 100000 + s * 10000 + shift;
    script.step(static_cast<std::uint32_t>(s))
        .at(K::step_start, -1, base, base - 90)
        .at(K::ids_ready, -1, base + 100, base - 80)
        .at(K::lookup_start, 0, base + 120, base - 70)
        .at(K::lookup_done, 0, base + 900 + s + lookup_ns, base - 60)
        .at(K::consumer_arrival, 0, base + 150, base - 50)
        .at(K::consumer_resumed, 0, base + 910 + s + lookup_ns, base - 40)
        .at(K::gather_start, 0, base + 920 + s + lookup_ns, base - 30)
        .at(K::gather_done, 0, base + 1000 + s + lookup_ns, base - 20)
        .at(K::step_done, -1, base + 2000 + s + step_ns, base - 10);
  }
  return script.events;
}

inline supervise::SlotReport tiny_report(int rank, std::uint16_t slot, std::int64_t steps, bool check) {
  Json facts = {
      {"steps", steps},
      {"own_tokens", 4 * steps},
      {"common_slot_tokens", 4 * steps},
      {"replicas_uncoupled", true},
      {"lookups", {{{"layer", 0}, {"rows", 16 * steps}, {"tiles_max", 1}, {"rows_last_step", 16}}}},
      {"collectives", {{{"object", "heads"}, {"group", "tp"}, {"layer", 0}, {"calls", steps}, {"bytes", 64}}}},
      {"setup_collectives", Json::array()},
      {"threads", 3}};
  if (check) {
    facts["checks"] = {{"ids", {{"compared", 32}, {"mismatches", 0}}},
                       {"rows", {{"compared", 32}, {"mismatches", 0}}},
                       {"hidden", {{"tokens", 4}, {"max_error", 0.25}, {"bound", 1.0}}}};
    facts["digests"] = {{"ids", std::string(64, 'a')}, {"rows", std::string(64, 'b')}};
  }
  return {rank, tiny_events(slot, steps, rank * 3), facts.dump()};
}

// A snapshot of a shm backing of `bytes` with all pages on node 0.
inline supervise::SnapshotReport tiny_snapshot(const plan::RunLayout& layout, int rank, const std::string& label,
                                               bool mapped, int node = 0) {
  const plan::RankPlace& place = layout.ranks[static_cast<std::size_t>(rank)];
  const plan::BackingPlace& backing = layout.backings[static_cast<std::size_t>(place.backing)];
  const std::int64_t pages = mapped ? backing.bytes / 4096 : 0;
  Json nodes = Json::object();
  if (mapped) nodes[std::to_string(node)] = pages;
  const Json mapping = {{"address", "0x7f0000000000"},
                        {"bytes", backing.bytes},
                        {"backing",
                         {{"kind", "shm"},
                          {"device", 25},
                          {"inode", 100 + place.backing},
                          {"allocated_bytes", mapped ? backing.bytes : 0}}},
                        {"policy", "default"},
                        {"node_pages", nodes},
                        {"kernel_page_bytes", 4096},
                        {"rss_bytes", pages * 4096},
                        {"pss_bytes", pages * 4096 / static_cast<std::int64_t>(backing.readers.size())},
                        {"shared_bytes", pages * 4096},
                        {"raw_numa_maps", {"7f0000000000 default file=/dev/shm/x"}},
                        {"raw_smaps", {"7f0000000000-7f0000001000 rw-s"}}};
  const Json pages_json = {
      {"node_pages", nodes},    {"unqueryable", Json::object()}, {"not_mapped_pages", mapped ? 0 : 1},
      {"queried_pages", pages}, {"total_pages", pages},          {"sampled", false},
      {"share_error", 0.0}};
  const Json snapshot = {
      {"label", label},
      {"rank_state",
       {{"cpus", {0, 1}},
        {"mems_allowed", "0"},
        {"task_policy", "default"},
        {"rollup_bytes", {{"rss", 1}, {"pss", 1}}}}},
      {"mapping", mapping},
      {"tables", {{{"layer", 0}, {"offset", 0}, {"bytes", backing.bytes}, {"move_pages", pages_json}}}}};
  return {rank, label, snapshot.dump()};
}

inline supervise::StorageReport tiny_storage(const plan::RunLayout& layout, const std::vector<std::string>& labels,
                                             int node = 0) {
  supervise::StorageReport storage;
  storage.ranks_ready_ns = 5'000'000;
  for (int rank = 0; rank < static_cast<int>(layout.ranks.size()); ++rank) {
    storage.stages.push_back({rank, control::Stage::map, 1000, 3000, 2, 0});
    for (const std::string& label : labels) {
      storage.snapshots.push_back(tiny_snapshot(layout, rank, label, label != "after_map", node));
    }
  }
  return storage;
}

// What the scripted ranks do otherwise than always the same.
struct TinyTimes {
  std::int64_t late_lookup_ns = 0;    // of arms that submit at their consumers
  std::int64_t observed_step_ns = 0;  // of every step of an observed slot
  bool kernel_replay = false;         // a rank's collector runs kernels again
};

// Plays ranks to the experiment driver.
class TinyExecutor final : public measure::Executor {
 public:
  explicit TinyExecutor(const plan::RunLayout& layout, int node = 0, TinyTimes times = {})
      : layout_(layout),
        node_(node),
        times_(times),
        storage_(tiny_storage(layout, {"after_map", "after_register", "after_load"}, node)) {}
  std::vector<supervise::SlotReport> run_slot(const control::RunSlot& slot) override {
    std::vector<supervise::SlotReport> reports;
    for (int rank = 0; rank < static_cast<int>(layout_.ranks.size()); ++rank) {
      supervise::SlotReport report = tiny_report(rank, slot.slot, slot.steps, slot.check);
      const bool late = slot.prefetch_json.find("at_consume") != std::string::npos;
      report.events = tiny_events(slot.slot, slot.steps, rank * 3, late ? times_.late_lookup_ns : 0,
                                  slot.observed ? times_.observed_step_ns : 0);
      if (slot.observed) {
        Json facts = Json::parse(report.facts_json);
        facts["observed"] = {{{"name", "ranges"}, {"kernel_replay", times_.kernel_replay}, {"seen", {{"ranges", 7}}}}};
        report.facts_json = facts.dump();
      }
      reports.push_back(std::move(report));
    }
    return reports;
  }
  void snapshot(const std::string& label) override {
    for (int rank = 0; rank < static_cast<int>(layout_.ranks.size()); ++rank) {
      storage_.snapshots.push_back(tiny_snapshot(layout_, rank, label, true, node_));
    }
  }
  void tear_down() override {}
  const supervise::StorageReport& storage() const noexcept override { return storage_; }

 private:
  plan::RunLayout layout_;
  int node_;
  TinyTimes times_;
  supervise::StorageReport storage_;
};

}  // namespace eb::result
