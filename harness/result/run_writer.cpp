#include "harness/result/run_writer.h"
#include "harness/result/kept_binding.h"
#include "harness/result/kept_placement.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <utility>

#include "harness/base/os.h"
#include "harness/result/emulation.h"
#include "harness/result/snapshots.h"
#include "placement/policy.h"

namespace eb::result {

namespace {

constexpr int kLeastPairs = 6;  // an exact sign test at 5 % needs them, and so does a gate

// Beside another result.json: manifest, failure, log, and what the result grows by.
constexpr std::size_t kRoomToEnd = 128 << 10;

// One line of samples/: the values of a replica's step, or with `rank` of one rank's. Written by hand: a million events
// give a hundred thousand of these. Names are plain; `arm` is a JSON string already.
void append_sample(std::string& out, const measure::SlotInfo& slot, const std::string& arm, std::int64_t step,
                   int replica, int rank, const std::vector<measure::Column>& columns,
                   const std::vector<double>& values) {
  auto end = std::back_inserter(out);
  fmt::format_to(end, R"({{"slot":{},"arm":{},"reroll":{},"block":{},"step":{},"replica":{},"rank":)", slot.slot, arm,
                 slot.reroll, slot.plan.block, step, replica);
  if (rank < 0) {
    out += "null";
  } else {
    fmt::format_to(end, "{}", rank);
  }
  out += ",\"values\":{";
  bool first = true;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (std::isnan(values[c])) continue;
    fmt::format_to(end, R"({}"{}":{})", first ? "" : ",", columns[c].name, values[c]);
    first = false;
  }
  out += "}}\n";
}

// Adds the numbers of `more` to `sum`; a key whose name says that it is no total keeps the larger, or the last, value.
void add_counts(Json& sum, const Json& more) {
  if (sum.is_null()) {
    sum = more;
    return;
  }
  for (const auto& [key, value] : more.items()) {
    if (!value.is_number() || key == "layer" || key.ends_with("_last_step") || key == "grid_cap") {
      sum[key] = value;
    } else if (key.ends_with("_max")) {
      sum[key] = std::max(sum.value(key, std::int64_t{0}), value.get<std::int64_t>());
    } else {
      sum[key] = sum.value(key, std::int64_t{0}) + value.get<std::int64_t>();
    }
  }
}

}  // namespace

RunWriter::RunWriter(RunFolder& folder, const RunInput& input) : folder_(folder) {
  record_.plan = input.plan;
  record_.layouts = input.layouts;
  record_.geometries = input.geometries;
  record_.topology = input.topology;
  record_.command_line = input.command_line;
  record_.binary_sha256 = input.binary_sha256;
  record_.instrument = input.instrument;
  allow_degraded_ = input.allow_degraded;
  record_.floor_key = input.floor_key;
  record_.aa_pairs = input.aa_pairs;
  record_.single_node = input.single_node;
  record_.cites = input.cites;
  record_.traced = input.traced;
  record_.emulated_time = emulated_time();
  record_.started_utc = utc_now();
  record_.before = read_machine_state();
  record_.work.resize(input.plan->arms.size());
  record_.devices.resize(input.plan->arms.size());
  std::size_t replicas = 0;
  std::size_t ranks = 0;
  for (std::size_t a = 0; a < record_.layouts.size(); ++a) {
    replicas = std::max(replicas, static_cast<std::size_t>(input.plan->arms[a].scenario.parallel.dp));
    ranks = std::max(ranks, record_.layouts[a].ranks.size());
  }
  record_.columns = measure::StepMetrics(record_.layouts.front(), measure::engram_layers(*input.plan)).columns();
  record_.cells.emplace(input.plan->arms.size());
  const Json expanded = Json::parse(input.plan->expanded_json, nullptr, false);
  folder_.write("plan.json", dump({{"schema", "engram-bench/plan"},
                                   {"schema_version", 1},
                                   {"sha256", input.plan->sha256},
                                   {"source", input.plan->source_path},
                                   {"plan", expanded.is_discarded() ? Json(input.plan->expanded_json) : expanded}}) +
                                 "\n");
  if (!record_.topology.hwloc_xml.empty()) folder_.write("topology.xml", record_.topology.hwloc_xml);
  log("run of " + input.plan->base.name + " begins");
  write_result(false);
}

void RunWriter::log(const std::string& text) { folder_.append_log(utc_now() + " " + text); }

void RunWriter::write_result(bool seal) {
  result_text_ = dump(result_document(record_)) + "\n";
  if (seal) {
    folder_.release_reserve();
    folder_.seal(result_text_);
  } else {
    folder_.write("result.json", result_text_);
    // Twice: until the blocks have doubled it may not be written again.
    folder_.keep_reserve(2 * result_text_.size() + kRoomToEnd);
  }
}

void RunWriter::write_result_in_progress() {
  const std::int64_t begin_ns = now_ns();
  if (!renewal_.due(begin_ns)) return;
  write_result(false);
  renewal_.written(begin_ns, now_ns());
}

void RunWriter::reroll_starting(const measure::RerollPlan& reroll) {
  during_ = fmt::format("re-roll {}: start of the ranks and storage", reroll.index);
  log(fmt::format("re-roll {} (pair {}) allocates for arm {}", reroll.index, reroll.pair,
                  record_.arm_name(reroll.allocated_for)));
  RerollRecord one;
  one.plan = reroll;
  one.nodes_before = collectors::read_node_memory();
  record_.rerolls.push_back(std::move(one));
}

// The running re-roll's record; of several allocations that of its arm.
RerollRecord& RunWriter::record_of(const measure::RerollPlan& reroll) {
  const auto found = std::find_if(record_.rerolls.rbegin(), record_.rerolls.rend(), [&](const RerollRecord& one) {
    return one.plan.index == reroll.index && one.plan.allocated_for == reroll.allocated_for;
  });
  if (found == record_.rerolls.rend()) fail(Exit::failure, "re-roll {} ends that did not start", reroll.index);
  return *found;
}

void RunWriter::reroll_ready(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) {
  RerollRecord& one = record_of(reroll);
  one.nodes_after_load = collectors::read_node_memory();
  one.storage = storage;
  write_snapshots(one);
  log(fmt::format("re-roll {}: tables loaded, ranks were ready after {:.1f} ms", reroll.index,
                  static_cast<double>(storage.ranks_ready_ns) / 1e6));
  require_binding(one, "after_register");
  require_placement(one, "after_register");
  require_binding(one, "after_load");
  require_placement(one, "after_load");
}

void RunWriter::slot_starting(const measure::SlotInfo& slot) {
  during_ = fmt::format("re-roll {}: slot {} ({}, arm {})", slot.reroll, slot.slot, measure::name(slot.plan.kind),
                        record_.arm_name(slot.plan.arm));
  if (slot.plan.kind == measure::SlotKind::warm_up && record_.uses_gpu()) pcie_.start();
  if (slot.plan.kind == measure::SlotKind::observed) {
    std::vector<int> pids;
    for (const RerollRecord& one : record_.rerolls) {
      const auto& arms = one.plan.arms;
      if (one.plan.index != slot.reroll || std::find(arms.begin(), arms.end(), slot.plan.arm) == arms.end()) continue;
      pids = one.storage.pids;
    }
    observation_.start(pids);
  }
}

void RunWriter::slot_done(const measure::SlotInfo& slot, const std::vector<supervise::SlotReport>& reports,
                          const std::vector<measure::StepValues>& values) {
  record_.slots.push_back(slot);
  pcie_.stop();
  if (slot.plan.kind == measure::SlotKind::warm_up) {
    for (const collectors::PcieSampler::Sample& one : pcie_.samples()) {
      record_.pcie_samples.push_back({{"slot", slot.slot},
                                      {"uuid", one.uuid},
                                      {"sent_bytes_per_s", one.sent_bytes_per_s},
                                      {"received_bytes_per_s", one.received_bytes_per_s}});
    }
  }
  const bool timed = slot.plan.kind == measure::SlotKind::timed;
  const bool calibration = slot.plan.kind == measure::SlotKind::calibration;
  std::vector<Json> facts(reports.size());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    facts[i] = Json::parse(reports[i].facts_json, nullptr, false);
    if (!facts[i].is_object())
      fail(Exit::failure, "rank {}: the facts of slot {} are not JSON", reports[i].rank, slot.slot);
    if (facts[i].contains("replicas_uncoupled")) {
      record_.replicas_uncoupled[slot.plan.arm] = facts[i]["replicas_uncoupled"].get<bool>();
    }
    if (const Json device = facts[i].value("device", Json()); device.is_object()) {
      record_.devices[slot.plan.arm][reports[i].rank] = device;
    }
    // Warm-ups are recorded too, so that the recording's own start is over by then, but not kept.
    if (timed && !reports[i].trace_json.empty()) add_trace(slot, reports[i]);
    for (const Json& one : facts[i].value("lookup_units", Json::array())) {
      std::int64_t& units = record_.work[slot.plan.arm][reports[i].rank].lookup_units[one.at("layer").get<int>()];
      units = std::max(units, one.at("units").get<std::int64_t>());
    }
    if (!timed && !calibration) continue;
    if (timed) add_work(slot, reports[i].rank, facts[i]);
    std::vector<rank::EventRecord>& events = block_events_[reports[i].rank];
    events.insert(events.end(), reports[i].events.begin(), reports[i].events.end());
  }
  if (slot.plan.check) add_check(slot, facts);
  if (slot.plan.kind == measure::SlotKind::observed) add_observed(slot, facts, values);
  if (!timed && !calibration) return;
  for (const measure::StepValues& step : values) {
    record_.cells->add(slot.plan.arm, slot.reroll, slot.plan.block, step);
  }
  append_samples(block_samples_, slot, values);
}

void RunWriter::append_samples(std::string& out, const measure::SlotInfo& slot,
                               const std::vector<measure::StepValues>& values) {
  const std::string arm = dump(record_.arm_name(slot.plan.arm), -1);
  for (const measure::StepValues& step : values) {
    const std::int64_t number = slot.first_step + step.step;
    const plan::RunLayout& layout = record_.layouts[slot.plan.arm];
    for (std::size_t d = 0; d < step.per_replica.size(); ++d) {
      append_sample(out, slot, arm, number, static_cast<int>(d), -1, record_.columns, step.per_replica[d]);
    }
    for (std::size_t r = 0; r < step.per_rank.size(); ++r) {
      append_sample(out, slot, arm, number, layout.ranks[r].replica, static_cast<int>(r), record_.columns,
                    step.per_rank[r]);
    }
  }
}

// Beside the samples, never among them: no figure and no verdict is made of an observed slot.
void RunWriter::add_observed(const measure::SlotInfo& slot, const std::vector<Json>& facts,
                             const std::vector<measure::StepValues>& values) {
  std::size_t step_column = 0;
  while (record_.columns[step_column].id != measure::MetricId::step) ++step_column;
  record_.observed.push_back(observation_.stop(slot, facts, values, step_column));
  if (record_.observed.back().kernel_replay) return;
  std::string lines;
  append_samples(lines, slot, values);
  folder_.write(fmt::format("observed/reroll-{}-slot-{}.jsonl", slot.reroll, slot.slot), lines);
}

void RunWriter::add_work(const measure::SlotInfo& slot, int rank, const Json& facts) {
  RankWork& work = record_.work[slot.plan.arm][rank];
  work.steps += facts.value("steps", std::int64_t{0});
  work.own_tokens += facts.value("own_tokens", std::int64_t{0});
  work.common_slot_tokens += facts.value("common_slot_tokens", std::int64_t{0});
  work.threads = std::max(work.threads, facts.value("threads", 0));
  if (Json window = facts.value("window", Json()); window.is_object()) {
    const std::int64_t earlier = work.windows.is_object() ? work.windows.value("short_windows", std::int64_t{0}) : 0;
    window["short_windows"] = earlier + window.value("short_windows", std::int64_t{0});
    work.windows = std::move(window);
  }
  const Json host = facts.value("host", Json::object());
  work.host_enqueue_ns += host.value("enqueue_ns", std::int64_t{0});
  work.wall_ns += host.value("wall_ns", std::int64_t{0});
  if (const Json launches = host.value("launches", Json()); launches.is_number()) {
    work.launches = work.launches.value_or(0) + launches.get<std::int64_t>();
  }
  for (const Json& one : facts.value("lookups", Json::array())) add_counts(work.lookups[one.value("layer", -1)], one);
  for (const Json& one : facts.value("collectives", Json::array())) {
    add_counts(work.collectives[fmt::format("{}/{}/{:05}", one.value("object", ""), one.value("group", ""),
                                            one.value("layer", -1) + 1)],
               one);
  }
  work.setup_collectives = facts.value("setup_collectives", Json::array());
}

void RunWriter::add_check(const measure::SlotInfo& slot, const std::vector<Json>& facts) {
  CheckRecord check;
  check.slot = slot.slot;
  check.arm = record_.arm_name(slot.plan.arm);
  check.when = slot.plan.kind == measure::SlotKind::check ? "before_timing" : "after_block";
  for (const Json& one : facts) {
    const Json checks = one.value("checks", Json());
    if (!checks.is_object()) fail(Exit::failure, "slot {}: a rank was asked for a check and reports none", slot.slot);
    const auto count = [&](const char* what, const char* key) {
      const Json part = checks.value(what, Json());
      return part.is_object() ? part.value(key, std::int64_t{0}) : 0;
    };
    check.ids_compared += count("ids", "compared");
    check.rows_compared += count("rows", "compared");
    check.mismatches += count("ids", "mismatches") + count("rows", "mismatches");
    const Json hidden = checks.value("hidden", Json());
    if (hidden.is_object()) {
      check.hidden_tokens += hidden.value("tokens", std::int64_t{0});
      check.hidden_max_error = std::max(check.hidden_max_error.value_or(0), hidden.value("max_error", 0.0));
      check.hidden_bound = hidden.value("bound", 0.0);
    }
    const Json digests = one.value("digests", Json::object());
    const Json rows = digests.value("rows", Json());
    check.rows_sha256.push_back(rows.is_string() ? rows.get<std::string>() : "");
    const Json hidden_sum = digests.value("hidden", Json());
    check.hidden_sha256.push_back(hidden_sum.is_string() ? hidden_sum.get<std::string>() : "");
  }
  // Checks before timing run on the same indices: where the factor is only how rows are fetched, all arms must have
  // gathered the same bytes. The stub gathers none.
  const auto gathered = [](const CheckRecord& one) {
    return one.when == "before_timing" &&
           std::none_of(one.rows_sha256.begin(), one.rows_sha256.end(), [](const auto& sum) { return sum.empty(); });
  };
  if (gathered(check) && record_.plan->experiment.factor.starts_with("prefetch.")) {
    for (const CheckRecord& other : record_.checks) {
      if (gathered(other) && other.rows_sha256 != check.rows_sha256) {
        fail(Exit::bad_data, "arms {} and {} gathered different rows for the same ids (slots {} and {})", other.arm,
             check.arm, other.slot, check.slot);
      }
    }
  }
  const std::int64_t mismatches = check.mismatches;
  record_.checks.push_back(std::move(check));
  if (mismatches > 0) {
    fail(Exit::bad_data, "slot {}: {} ids or rows differ from the reference", slot.slot, mismatches);
  }
}

void RunWriter::warm_up_done(const measure::WarmUp& warm_up) {
  record_.warm_ups.push_back(warm_up);
  log(fmt::format("warm-up of arm {}: {} steps, {}", record_.arm_name(warm_up.arm), warm_up.steps,
                  warm_up.steady ? "steady" : "not steady"));
}

void RunWriter::add_trace(const measure::SlotInfo& slot, const supervise::SlotReport& report) {
  Json trace = Json::parse(report.trace_json, nullptr, false);
  if (!trace.is_object()) fail(Exit::failure, "rank {}: the trace of slot {} is not JSON", report.rank, slot.slot);
  Json one = {{"slot", slot.slot},
              {"kind", measure::name(slot.plan.kind)},
              {"arm", record_.arm_name(slot.plan.arm)},
              {"first_step", slot.first_step},
              {"steps", slot.plan.steps}};
  one.update(trace);
  block_traces_[report.rank].push_back(std::move(one));
}

void RunWriter::flush_block(int reroll, int block) {
  for (const auto& [rank, slots] : block_traces_) {
    folder_.write(
        fmt::format("trace/reroll-{}-block-{}-rank-{}.json", reroll, block, rank),
        dump({{"schema", "engram-bench/trace"}, {"schema_version", 1}, {"rank", rank}, {"slots", slots}}, -1) + "\n");
  }
  block_traces_.clear();
  for (auto& [rank, events] : block_events_) {
    auto file = event_files_.find(rank);
    if (file == event_files_.end()) file = event_files_.emplace(rank, folder_.event_file(rank)).first;
    file->second.append(events);
    file->second.sync();
    events.clear();
  }
  if (!block_samples_.empty()) {
    folder_.write(fmt::format("samples/reroll-{}-block-{}.jsonl", reroll, block), block_samples_);
  }
  block_samples_.clear();
  stored_steps_ = record_.cells->counts();
}

void RunWriter::block_done(const measure::RerollPlan& reroll, int block) {
  during_ = fmt::format("re-roll {}: writing block {}", reroll.index, block);
  flush_block(reroll.index, block);
  if (record_.uses_gpu()) {
    const Json nvml = Json::parse(collectors::nvml_state(), nullptr, false);
    record_.gates.push_back(judge_gates(record_, reroll.index, block, nvml));
  }
  log(fmt::format("re-roll {}: block {} done", reroll.index, block));
  write_result_in_progress();
}

// experiment.stop precision. The rule looks at the width of the interval alone, never at where it lies.
bool RunWriter::pair_done(int pair) {
  if (!record_.plan->experiment.stop_at_precision) return false;
  record_.pairs_made = pair + 1;
  const std::optional<Precision> found = precision_of(record_);
  if (!found) return false;
  record_.half_width_log = found->half_width;
  const bool enough = *record_.pairs_made >= kLeastPairs && found->half_width <= std::log1p(found->delta) / 2;
  log(fmt::format("pair {}: the primary's interval is +-{:.3f} %, delta is {:.3f} %{}", pair, found->half_width * 100,
                  found->delta * 100, enough ? ": enough" : ""));
  return enough;
}

void RunWriter::reroll_steady(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) {
  RerollRecord& one = record_of(reroll);
  one.storage = storage;
  write_snapshots(one);
  require_binding(one, "steady");
  require_placement(one, "steady");
  during_ = fmt::format("re-roll {}: tear-down", reroll.index);
}

void RunWriter::reroll_done(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) {
  record_of(reroll).storage = storage;
  log(fmt::format("re-roll {}: torn down", reroll.index));
}

void RunWriter::write_snapshots(RerollRecord& reroll) {
  for (; reroll.snapshots_written < reroll.storage.snapshots.size(); ++reroll.snapshots_written) {
    const supervise::SnapshotReport& one = reroll.storage.snapshots[reroll.snapshots_written];
    const Json snapshot = Json::parse(one.json, nullptr, false);
    if (snapshot.is_discarded()) fail(Exit::failure, "rank {}: snapshot {} is not JSON", one.rank, one.label);
    folder_.write(fmt::format("placement/{}/{}-rank-{}.json", reroll.folder(), one.label, one.rank),
                  dump(snapshot) + "\n");
  }
}

void RunWriter::require_binding(RerollRecord& reroll, const std::string& label) {
  for (supervise::DegradedBinding& one : newly_lost(reroll, label)) {
    if (!allow_degraded_) {
      fail(
          Exit::failure,
          "binding_degraded: re-roll {}, rank {}: storage.bind_ranks was lost: {}; --allow-degraded records it instead",
          reroll.plan.index, one.rank, one.lost);
    }
    reroll.lost_later.push_back(std::move(one));
  }
}

void RunWriter::require_placement(const RerollRecord& reroll, const std::string& label) {
  for (const BrokenPromise& one : broken_promises(record_, reroll, label)) {
    if (!allow_degraded_) fail(Exit::failure, "{}", one.text);
    record_.warnings.push_back({"placement_degraded",
                                one.text,
                                "Leave --allow-degraded out, and the run fails where the pages are not as asked.",
                                {{"reroll", reroll.plan.index}, {"backing", one.backing}, {"snapshot", label}}});
  }
}

void RunWriter::finish() {
  during_ = "end";
  record_.after = read_machine_state();
  if (record_.instrument) {
    for (std::size_t a = 0; a < record_.plan->arms.size(); ++a) {
      if (!record_.cells->summary(a, 0)) fail(Exit::failure, "arm {} has no sample", record_.arm_name(a));
    }
  }
  log("complete");
  record_.complete = true;
  try {
    write_result(true);
  } catch (...) {
    record_.complete = false;
    throw;
  }
}

void RunWriter::finish_failed(const std::string& text, Exit exit) {
  folder_.release_reserve();
  record_.complete = false;
  // Figures of a block that was cut off have no samples to stand on.
  record_.cells->drop_behind(stored_steps_);
  record_.failures.push_back({text, static_cast<int>(exit), during_});
  if (!record_.after) record_.after = read_machine_state();
  if (!record_.figures_allowed()) {
    std::error_code error;
    std::filesystem::remove_all(folder_.path() + "/samples", error);
  }
  folder_.write(fmt::format("failures/failure-{}.json", record_.failures.size() - 1),
                dump({{"text", text}, {"exit", static_cast<int>(exit)}, {"during", during_}}) + "\n");
  log("failed: " + text);
  write_result(true);
}

}  // namespace eb::result
