// The typed scenario file. One table of keys (keys.cpp) drives parsing, --set, nearest-key errors, the JSON schema and
// the reference page; this header is what the rest of the program sees. No JSON here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/engram/geometry.h"
#include "harness/engram/ledger.h"

namespace eb::plan {

// model.backbone: a stand-in for the layers around Engram: two GEMMs a layer, hidden -> n -> hidden, per TP rank.
struct Backbone {
  std::string preset;  // "gemm-v4.1-flash" or empty
  int layers = 0;
  std::int64_t weight_bytes_per_layer = 0;  // one byte a parameter, before scale and TP
  std::int64_t flops_per_token_per_layer = 0;
  std::int64_t expert_bytes_per_token = 0;  // of the all-to-all in each layer where parallel.ep > 1
  double scale = 1.0;
};

struct ModelSpec {
  engram::Model base;  // the preset with the scenario's own geometry laid over it
  double table_scale = 1.0;
  Backbone backbone;
};

using engram::Layout;
using engram::TableMode;

struct ParallelSpec {
  int tp = 1;
  int dp = 1;
  int ep = 1;
  bool sequence_parallel = false;
  TableMode table_mode = TableMode::shared;
};

enum class BackendKind { auto_, cpu, cuda, fake };

struct DeviceSpec {
  BackendKind backend = BackendKind::auto_;
  std::string rank_map = "default";  // default, shard-near
  std::vector<int> rank_devices;     // where rank_map is a list
  int cpu_workers = 1;               // CPU backend: stands for the SM count
  // Fake backend: duration of an operation by its name ("lookup") or name and layer ("lookup.l14"), in us; else 10.
  std::map<std::string, double> fake_durations_us;
  // Fake backend: standard deviation of the logarithm of all its durations from one re-roll to the next.
  double fake_noise = 0;
};

enum class Backing { shm, memfd, hugetlb_2m, hugetlb_1g, shm_thp, anon, anon_thp, cuda_host_numa, hbm, stub };
enum class PolicyKind { none, stock, bind, preferred, interleave, weighted, consumer };

struct Policy {
  PolicyKind kind = PolicyKind::none;
  std::vector<int> nodes;                    // bind, preferred, interleave; empty with `all_nodes`
  bool all_nodes = false;                    // interleave:all
  std::vector<std::pair<int, int>> weights;  // weighted: node, weight
  std::string text;                          // as written
};

enum class PinnedRounding { none, power_of_two };
// How many copies of a shard: one for all its readers, or one on each NUMA node where a reader's device is.
enum class Copies { one, per_numa_node };
enum class PretouchKind { none, leader, parallel };
enum class RegisterOrder { concurrent, serial, leader_first };

struct StorageSpec {
  Backing backing = Backing::shm;
  Layout layout = Layout::split;
  Policy policy;
  Copies copies = Copies::one;
  PinnedRounding pinned_rounding = PinnedRounding::none;  // of each array of private tables
  PretouchKind pretouch = PretouchKind::leader;
  int pretouch_threads = 0;  // parallel without a number: all allowed CPUs (0)
  RegisterOrder register_order = RegisterOrder::concurrent;
  std::string bind_ranks = "none";  // none, device-local, or a list of nodes
  std::string checkpoint;           // folder of safetensors files; empty: synthetic content
  double tolerance = 0.01;
};

enum class Submit { early, at_consume };
enum class Streams { fifo, per_layer };
enum class Order { token, table };

struct GridCap {  // a number, a fraction of the units, half, all
  enum class Kind { programs, fraction } kind = Kind::fraction;
  double value = 0.5;
  std::string text = "half";
  // Programs on a device of `units` units, at least 1.
  [[nodiscard]] std::int64_t programs(int units) const noexcept;
};

struct PrefetchSpec {
  Submit submit = Submit::early;
  Streams streams = Streams::fifo;
  GridCap grid_cap;
  Order order = Order::token;
  std::string graph = "off";  // off, piecewise (CUDA)
};

enum class WorkloadKind { lookup, steps };
enum class TokenKind { uniform, zipf_ngram, constant, file };
enum class IndexState { rotated, repeat };

struct TokenSpec {
  TokenKind kind = TokenKind::uniform;
  std::string file;  // kind file: path, resolved against the scenario file's folder
  std::string map = "identity";
  std::int32_t constant = 0;
  // zipf_ngram: fitted to the shipped text (docs/token-models.md)
  double zipf_exponent = 0;  // 0: the fitted default
  double repeat_probability = 0;
};

// What one step processes: of every replica, or of the one named.
struct Batch {
  std::vector<std::int64_t> prefill;  // chunk lengths, one a sequence
  std::int64_t decode = 0;            // sequences that decode one token
  int replica = -1;                   // -1: every replica
};

// workload.active_readers: which ranks read; the others hold their tables and stay idle.
struct ActiveReaders {
  int first = 0;           // the first N ranks; 0: all, or those of the list
  std::vector<int> ranks;  // a list
  [[nodiscard]] bool reads(int rank) const noexcept;
};

struct WorkloadSpec {
  WorkloadKind kind = WorkloadKind::steps;
  // Step s uses entry s % size of each replica's list: entries with replica -1 or that replica, in order. A replica
  // whose list is empty is idle (0 tokens).
  std::vector<Batch> batches;
  std::int64_t steps = 1;    // measured steps a slot
  std::int64_t warmup = 0;   // steps before the first block of a re-roll
  std::int64_t burn_in = 0;  // untimed steps before each block
  TokenSpec tokens;
  IndexState index_state = IndexState::rotated;
  ActiveReaders active_readers;      // kind lookup
  std::int64_t window_launches = 0;  // kind lookup: launches of a table in a window; 0: the rank finds out

  [[nodiscard]] std::vector<Batch> batches_of(int replica) const;
  // Tokens of replica `replica` in step `step`.
  [[nodiscard]] std::int64_t step_tokens(int replica, std::int64_t step) const;
  // Largest over replicas and steps.
  [[nodiscard]] std::int64_t max_tokens(int dp) const;
};

struct Slo {
  double ttft_ms = 0;
  double itl_ms = 0;
  std::string itl_rule = "max";
};

// A planted fault, for tests; a result that has one says so and gives no figures.
// kind: none, kill, hang, skip_lookup, late_lookup, fail. stage: before_map, before_register, during_load, in_step.
// rank -1 = the supervisor.
struct Fault {
  std::string kind = "none";
  std::string stage;
  int rank = 0;
  std::int64_t step = 0;
};

// Everything of one arm, fully resolved.
struct Scenario {
  std::string name;
  std::string question;
  ModelSpec model;
  ParallelSpec parallel;
  DeviceSpec device;
  StorageSpec storage;
  PrefetchSpec prefetch;
  WorkloadSpec workload;
  Slo slo;
  std::uint64_t seed = 1;
  Fault fault;

  [[nodiscard]] int ranks() const noexcept { return parallel.tp * parallel.dp; }
};

// Real extra work in one stage of one arm, to see whether an experiment finds it. A result that has it says so and can
// be no baseline.
struct InjectSpec {
  std::string stage;   // lookup, front, gather; empty: none
  double percent = 0;  // of what the stage takes without it
  std::string arm;
};

struct ExperimentSpec {
  std::string factor;  // empty: one arm "A", the scenario itself
  std::string aa;      // together, apart: the arms A and A2 are both the scenario itself; empty: no A/A experiment
  int pairs = 1;       // re-rolls
  int blocks = 1;      // ABBA/BAAB blocks a re-roll
  double delta = 0.02;
  std::string primary;
  std::vector<std::string> guards;
  std::string outcome;             // metric of a replay that decides link 4; empty: none is named
  std::vector<std::string> cites;  // stored runs that advice on copies rests on: folders or archive:NAME
  bool stop_at_precision = false;  // pairs are added until the interval is narrow enough; else all of them are made
  bool coresident = false;         // arms that place pages: all tables of a pair at once, blocks alternate
  bool observed_pass = true;       // after the timed pass, one with collectors on
  bool negative_control = true;    // where there are two arms and two pairs or more
  InjectSpec inject;
  std::optional<bool> bw_effective;  // close blocks with the bare row gather; none: where the lookup runs alone
};

struct Arm {
  std::string name;                              // "A", "B", ... or the control's name
  bool control = false;                          // beside the arms, never judged
  std::map<std::string, std::string> overrides;  // key path -> JSON text
  std::vector<std::string> joint_keys;           // of experiment.joint_arms: the keys that change together
  Scenario scenario;
  bool research = false;   // provenance: false = stock vLLM can be set so
  std::string provenance;  // stock: the vLLM flags that give it; research: what makes it so
};

struct SkippedControl {
  std::string name;
  std::string why;
};

struct Plan {
  Scenario base;
  ExperimentSpec experiment;
  std::vector<Arm> arms;                         // arms first, then controls
  std::vector<SkippedControl> skipped_controls;  // left out of `arms`: this machine cannot run them
  // True where the factor changes only prefetch.* or workload.*: arms alternate inside one re-roll. False: each arm
  // allocates anew.
  bool arms_share_allocation = true;
  std::string source_path;    // the scenario file
  std::string expanded_json;  // the whole plan with every default filled in; what the hash is of
  std::string sha256;         // of expanded_json
};

struct Setting {  // --set key=value
  std::string key;
  std::string value;  // JSON, or a bare word taken as a string
};

// --with FILE: a part of a scenario file that is laid over it, before the settings.
struct Overlay {
  std::string path;  // for errors
  std::string text;
};

// Reads, checks and expands a scenario file. Errors: Error(usage): syntax with line and column, unknown key with the
// nearest one, wrong type, out of range, an invalid combination (16 shards, shared with dp 1, ...).
// Overlays come first, in their order: objects are merged key by key, all else is put in place of what was there, null
// takes a key away; the overlay's name is put behind the scenario's, as in b1-decode.
[[nodiscard]] Plan load_plan(const std::string& path, const std::vector<Setting>& settings,
                             const std::vector<Overlay>& overlays = {});
// As load_plan from text; relative paths in it, and in overlays, resolve against `folder`.
[[nodiscard]] Plan parse_plan(const std::string& text, const std::string& folder, const std::vector<Setting>& settings,
                              const std::vector<Overlay>& overlays = {});
// One arm's scenario as JSON text and back: how a rank receives its scenario.
[[nodiscard]] std::string to_json(const Scenario& scenario);
[[nodiscard]] Scenario scenario_from_json(const std::string& text);

// JSON Schema of the scenario file (scenarios/schema/scenario.schema.json) and its reference page (docs/scenario.md).
[[nodiscard]] std::string scenario_schema();
[[nodiscard]] std::string scenario_reference();

[[nodiscard]] const char* name(TableMode value) noexcept;
[[nodiscard]] const char* name(Layout value) noexcept;
[[nodiscard]] const char* name(BackendKind value) noexcept;
[[nodiscard]] const char* name(Backing value) noexcept;
[[nodiscard]] const char* name(PolicyKind value) noexcept;
[[nodiscard]] const char* name(PinnedRounding value) noexcept;
[[nodiscard]] const char* name(Copies value) noexcept;
[[nodiscard]] const char* name(PretouchKind value) noexcept;
[[nodiscard]] const char* name(RegisterOrder value) noexcept;
[[nodiscard]] const char* name(Submit value) noexcept;
[[nodiscard]] const char* name(Streams value) noexcept;
[[nodiscard]] const char* name(Order value) noexcept;
[[nodiscard]] const char* name(WorkloadKind value) noexcept;
[[nodiscard]] const char* name(TokenKind value) noexcept;
[[nodiscard]] const char* name(IndexState value) noexcept;

}  // namespace eb::plan
