// Everything a run has seen so far: what the observer fills and result.json is made from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collectors/system_state.h"
#include "harness/measure/cells.h"
#include "harness/measure/experiment.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "harness/result/floors.h"
#include "harness/result/json_value.h"
#include "harness/result/observed_pass.h"
#include "harness/supervise/reroll.h"
#include "placement/topology.h"

namespace eb::result {

struct MachineState {  // at one moment
  std::vector<collectors::NodeMemory> nodes;
  std::map<std::string, collectors::Reading> os;
  Json nvml;  // collectors::nvml_state()
};
[[nodiscard]] MachineState read_machine_state();

// One allocation of the tables.
struct RerollRecord {
  measure::RerollPlan plan;
  supervise::StorageReport storage;
  std::vector<collectors::NodeMemory> nodes_before;      // before the ranks were started
  std::vector<collectors::NodeMemory> nodes_after_load;  // when the tables were loaded, before any step
  std::size_t snapshots_written = 0;
  std::vector<supervise::DegradedBinding> lost_later;  // parts of the binding that a snapshot did not show any more

  // "re-roll 3", with its arm where the re-roll holds the tables of several: folder and file names.
  [[nodiscard]] std::string folder() const;
};

struct Warning {
  std::string code;
  std::string text;
  std::string next_step;
  Json figures = Json::object();
};

struct FailureRecord {
  std::string text;
  int exit = 1;
  std::string during;  // "re-roll 0: slot 12 (timed, arm A)"
};

// What all timed slots of one arm did, added up over slots; per rank.
struct RankWork {
  std::int64_t steps = 0;
  std::int64_t own_tokens = 0;
  std::int64_t common_slot_tokens = 0;
  std::map<int, Json> lookups;              // by layer
  std::map<std::string, Json> collectives;  // by object, group and layer
  Json setup_collectives = Json::array();   // of the last slot
  int threads = 0;
  std::int64_t host_enqueue_ns = 0;
  std::int64_t wall_ns = 0;
  std::optional<std::int64_t> launches;
  std::map<int, std::int64_t> lookup_units;  // by layer: most distinct SMs that a lookup ran on, in slots not timed
  Json windows;  // workload.kind lookup: kernel, launches of a window, windows below their length; null: steps
};

// The devices after a block, while its ranks still hold them.
struct GateRecord {
  int reroll = 0;
  int block = 0;
  Json devices = Json::array();     // those that the ranks use
  std::vector<std::string> failed;  // what was not as it must be, in words
};

struct CheckRecord {  // of one checked slot, over its ranks
  int slot = 0;
  std::string arm;
  std::string when;  // before_timing, after_block
  std::int64_t ids_compared = 0;
  std::int64_t rows_compared = 0;
  std::int64_t mismatches = 0;
  std::int64_t hidden_tokens = 0;
  std::optional<double> hidden_max_error;
  std::optional<double> hidden_bound;
  std::vector<std::string> rows_sha256;    // by rank; empty text where there is none
  std::vector<std::string> hidden_sha256;  // by rank: equal for equal batch shapes on one backend
};

struct Record {
  const plan::Plan* plan = nullptr;
  std::vector<plan::RunLayout> layouts;  // of each arm
  std::vector<engram::Geometry> geometries;
  placement::Topology topology;
  std::string command_line;
  std::string binary_sha256;
  std::string started_utc;
  bool instrument = true;
  FloorKey floor_key;
  AaPairs aa_pairs;            // of this machine and scenario, by metric
  Json cites = Json::array();  // read_cites()
  bool emulated_time = false;  // a software emulator keeps the time
  bool single_node = false;    // a rehearsal of a placement experiment on one NUMA node
  bool traced = false;         // run --trace: the times have the recording in them
  MachineState before;
  std::optional<MachineState> after;

  std::vector<measure::Column> columns;
  std::optional<measure::Cells> cells;
  std::vector<measure::SlotInfo> slots;
  std::vector<measure::WarmUp> warm_ups;
  std::vector<RerollRecord> rerolls;
  std::vector<std::map<int, RankWork>> work;  // [arm][rank]
  std::vector<std::map<int, Json>> devices;   // [arm][rank], as the ranks report them
  std::vector<GateRecord> gates;
  Json pcie_samples = Json::array();
  std::map<std::size_t, bool> replicas_uncoupled;
  std::vector<CheckRecord> checks;
  std::vector<ObservedSlot> observed;
  std::optional<int> pairs_made;  // experiment.stop precision: so far; else all that are planned
  double half_width_log = 0;      // of the primary's interval after them, the widest of the arms
  std::vector<Warning> warnings;
  std::vector<FailureRecord> failures;
  bool complete = false;

  // False where a check failed or a fault was planted: then no figure of performance may be shown.
  [[nodiscard]] bool figures_allowed() const;
  [[nodiscard]] bool fault_planted() const;
  // A rank's kernels took turns with another's on one device: no time says anything.
  [[nodiscard]] bool time_sliced() const;
  [[nodiscard]] bool uses_gpu() const;
  [[nodiscard]] int pairs() const { return pairs_made.value_or(plan->experiment.pairs); }
  [[nodiscard]] const std::string& arm_name(std::size_t arm) const { return plan->arms[arm].name; }
};

// The content of result.json (docs/results.md), and its parts.
[[nodiscard]] Json result_document(const Record& record);
[[nodiscard]] Json context_section(const Record& record);
[[nodiscard]] Json topology_section(const placement::Topology& topology);
[[nodiscard]] Json effective_section(const Record& record);
[[nodiscard]] Json conditions_section(const Record& record);
// Devices that the ranks of an arm reported; empty before its first slot.
[[nodiscard]] Json devices_of(const Record& record, std::size_t arm);
// The keys of `conditions` that speak of GPUs: driver, cuda, nccl, clocks, link, gates, PCIe throughput.
void add_gpu_conditions(const Record& record, Json& conditions);
// The NVML state after a block, judged against the first of the run.
[[nodiscard]] GateRecord judge_gates(const Record& record, int reroll, int block, const Json& nvml);
[[nodiscard]] std::vector<Warning> device_warnings(const Record& record);
[[nodiscard]] Json ledger_section(const Record& record);
[[nodiscard]] Json placement_section(const Record& record);
[[nodiscard]] Json startup_section(const Record& record);
[[nodiscard]] Json checks_section(const Record& record);
[[nodiscard]] Json arms_section(const Record& record);
[[nodiscard]] Json cells_section(const Record& record);
[[nodiscard]] Json slots_section(const Record& record);

// Half the width of the primary's interval, as a log ratio: of the arm with the widest, from the samples so far; empty
// where an arm has none.
struct Precision {
  double half_width = 0;
  double delta = 0;  // that is used
};
[[nodiscard]] std::optional<Precision> precision_of(const Record& record);

// Warnings that follow from what was recorded: oversubscribed, ledger_disagrees, warm_up_not_steady, planted_fault.
[[nodiscard]] std::vector<Warning> derived_warnings(const Record& record);
// Threads that want to run at once over the allowed CPUs, where that is more than one to one; else empty.
struct Oversubscription {
  int threads = 0;
  int cpus = 0;
};
[[nodiscard]] std::optional<Oversubscription> oversubscription(const Record& record);

}  // namespace eb::result
