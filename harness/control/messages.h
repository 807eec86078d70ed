// Typed messages between the supervisor and its ranks. On the wire: a 16-byte header (length, type, number of
// descriptors), then the payload as JSON text; descriptors travel by SCM_RIGHTS. No message passes inside a timed
// window.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "harness/base/unique_fd.h"

namespace eb::control {

// ---- supervisor -> rank

// First message. Descriptors: [0] the arena, [1] the progress page (RankProgress of every rank).
struct Setup {
  int rank = 0;
  std::string scenario_json;  // of the arm (plan::to_json)
  std::uint64_t arena_bytes = 0;
  std::vector<int> allowed_cpus;  // for bind_ranks; empty = unchanged
  std::vector<int> memory_nodes;  // for bind_ranks: the task's memory policy, bound to these; empty = unchanged
  int numa_node = -1;             // the rank's device node
  int device = -1;                // index of the rank's device; -1: not stated
  std::vector<int> rank_nodes{};  // device node of every rank: decides who reads which copy
  bool instrument = true;         // false: only the dependency events
  bool allow_degraded = false;    // a lost part of the binding and a refused policy are reported, not failures
};

// One step of the storage life cycle; every rank answers StageDone before the next is sent, which is the barrier.
// `create` goes to leaders; `map` carries the backing's descriptor to every reader of it.
// `policy`: with Setup::allow_degraded the note says what was refused; empty: the policy is set.
// `digest` (leaders, after load; copies per-numa-node): the SHA-256 of the whole backing comes back in the note.
enum class Stage { create, map, policy, pretouch, register_, load, prepare, unregister, unmap, stock_open, digest };
[[nodiscard]] const char* name(Stage stage) noexcept;

// A piece of a backing that is passed on as several descriptors (cuda-host-numa): a descriptor does not tell its size.
struct TablePiece {
  int node = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const TablePiece&, const TablePiece&) = default;
};

struct RunStage {
  Stage stage{};
  std::string path;                  // stock_open: the file's name
  std::vector<TablePiece> pieces{};  // map: of each descriptor, in order; empty: one or none, sized as ever
};

// Asks for the collectors' view of this rank: `label` = after_map, after_pretouch, after_register, after_load, steady.
struct Snapshot {
  std::string label;
};

// Runs steps of one arm. Timed unless warm-up.
struct RunSlot {
  std::uint16_t slot = 0;
  std::string prefetch_json;  // the arm's whole scenario; only prefetch.* and workload.* may differ from Setup's
  std::int64_t steps = 0;
  std::int64_t first_step = 0;  // index_state rotated: where the token streams go on
  bool timed = true;
  bool check = false;  // compare the last step's ids and gathered rows with the reference; staging poisoned before it
  bool check_hidden = false;  // also the hidden states of sampled tokens (before timing)
  bool control = false;       // the negative control before each step
  bool observed = false;      // the observed pass: collectors of the rank are on, and its times enter no figure
  std::string inject_stage;   // planted extra work: lookup, front, gather; empty: none
  double inject_percent = 0;  // of what the stage takes in slots without it
  bool trace = false;         // kernel records are kept (run --trace); the whole run is marked as traced
  bool bare = false;          // windows of the bare row gather (BW_effective) instead of the arm's own work
};

struct Stop {};

// ---- rank -> supervisor

// A part of storage.bind_ranks that a rank does not have.
struct LostPart {
  std::string part;  // "CPUs", "memory policy"
  std::string text;  // what was asked and what was found
  friend bool operator==(const LostPart&, const LostPart&) = default;
};

struct Ready {
  int pid = 0;
  std::vector<LostPart> binding_lost{};
};

struct StageDone {
  Stage stage{};
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t minor_faults = 0;  // of the rank's threads during the stage
  std::int64_t major_faults = 0;
  std::string note;  // e.g. the stock file's path; descriptors: [0] the backing after `create`
  // Allocated bytes of the rank's shared backing when the stage began and ended, whoever faulted them; -1: private
  // memory, or none.
  std::int64_t allocated_before_bytes = -1;
  std::int64_t allocated_after_bytes = -1;
  std::vector<TablePiece> pieces{};  // after `create`: of each descriptor, where there are several
};

// Collectors' output as JSON text (schema: docs/results.md, placement); raw numa_maps and smaps lines inside.
struct SnapshotDone {
  std::string label;
  std::string json;
};

// Descriptors: [0] memfd with `event_count` rank::EventRecord.
struct SlotDone {
  std::uint16_t slot = 0;
  std::uint64_t event_count = 0;
  // rows, unique rows/pages/sectors, grid, tiles, collectives' bytes, checks; of an observed slot also "observed", what
  // the rank's own collectors saw: a list of {name, kernel_replay, seen}
  std::string facts_json;
  std::string trace_json{};          // RunSlot::trace: kernels as the device ran them, or why there are none
  std::int64_t window_launches = 1;  // lookups of each table in a step: 1 in steps of a model; 0: an idle rank
};

struct Failure {
  int rank = 0;
  std::string stage;  // what the rank was doing
  std::string text;
  int exit = 1;  // eb::Exit
};

using ToRank = std::variant<Setup, RunStage, Snapshot, RunSlot, Stop>;
using ToSupervisor = std::variant<Ready, StageDone, SnapshotDone, SlotDone, Failure>;

}  // namespace eb::control
