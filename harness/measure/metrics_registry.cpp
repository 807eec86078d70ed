#include <algorithm>
#include <array>
#include <cctype>

#include "harness/base/error.h"
#include "harness/measure/metrics.h"

namespace eb::measure {

namespace {

constexpr const char* kBoth = "lookup, steps";
constexpr const char* kSteps = "steps";
constexpr const char* kLookup = "lookup";
constexpr const char* kNoBare = "experiment.bw_effective is off";
constexpr const char* kNoTable = "no lookup runs with storage.backing stub";
constexpr const char* kOneMember = "the group has one member, so nothing is exchanged";
constexpr const char* kNotSharded = "only table_mode dp_sharded with an EDP group above 1 exchanges it";

constexpr std::array kMetrics = {
    Metric{
        MetricId::step, "step_us", "us", false, kBoth,
        "From the first start to the last end of the step over the replica's ranks. A rank's own value: its step_start "
        "to its step_done. With workload.kind lookup: a window of all tables, of the replica's slowest rank.",
        "the step did not run"},
    Metric{MetricId::hash, "hash_us", "us", false, kSteps,
           "step_start to ids_ready on the main stream, without the id exchange inside it.",
           "ids are given, not hashed"},
    Metric{MetricId::lookup, "lookup_us", "us", true, kBoth,
           "L = f - s: from the start of the lookup on the prefetch stream to its end. With workload.kind lookup: the "
           "window's length over its launches.",
           kNoTable},
    Metric{MetricId::queue, "queue_us", "us", true, kSteps,
           "q = s - r: how long a lookup that could have started stood in the prefetch stream. r is the latest of ids "
           "ready (after any exchange), the host's submission, the last read of the staging buffer by the step before, "
           "and the "
           "release where prefetch.submit is at_consume.",
           kNoTable, true},
    Metric{MetricId::fifo_residual, "fifo_residual_us", "us", true, kSteps,
           "s_i - max(r_i, f_(i-1)), f_(i-1) being the end of the lookup before it on the one prefetch stream: the "
           "part of "
           "a start that neither readiness nor the FIFO explains. It explains one observed timeline and predicts no "
           "other.",
           "prefetch.streams is not fifo, or no lookup runs", true},
    Metric{
        MetricId::exposed, "exposed_us", "us", true, kSteps,
        "E = max(0, f - c): how long the main stream stands at its wait because the lookup is not done. It is the sum "
        "of recoverable_us, host_late_us, peer_late_us and other_late_us.",
        kNoTable, true},
    Metric{
        MetricId::recoverable, "recoverable_us", "us", true, kSteps,
        "The part of E that an earlier lookup alone would have given back: the main stream's next kernel was already "
        "enqueued, every other member of the collective that follows could have joined it without its own wait, and "
        "the "
        "lookup's inputs were there.",
        kNoTable, true},
    Metric{MetricId::host_late, "host_late_us", "us", true, kSteps,
           "The part of E before the host had enqueued the main stream's next kernel.", kNoTable, true},
    Metric{
        MetricId::peer_late, "peer_late_us", "us", true, kSteps,
        "The part of E after that, in which the next kernel is a collective that a peer could not have joined yet even "
        "without waiting for its own lookup.",
        kNoTable, true},
    Metric{
        MetricId::other_late, "other_late_us", "us", true, kSteps,
        "The part of E after that, in which the lookup's own inputs (ids, staging buffer, submission) were not there "
        "yet.",
        kNoTable, true},
    Metric{
        MetricId::front, "front_us", "us", true, kSteps,
        "front_us.lN: main compute in the backbone layers between the previous consumer (or the step's start) and the "
        "consumer of layer N, without the expert exchange inside them.",
        "no backbone layer lies before the consumer"},
    Metric{MetricId::ids, "ids_us", "us", false, kSteps,
           "Id exchange over the EDP group: from the last member's arrival to done.", kNotSharded},
    Metric{MetricId::ids_skew, "ids_skew_us", "us", false, kSteps,
           "Last arrival at the id exchange minus the own arrival.", kNotSharded, true},
    Metric{MetricId::rows, "rows_us", "us", true, kSteps,
           "Row exchange over the EDP group: from the last member's arrival to done.", kNotSharded},
    Metric{MetricId::rows_skew, "rows_skew_us", "us", true, kSteps,
           "Last arrival at the row exchange minus the own arrival.", kNotSharded, true},
    Metric{MetricId::gather, "gather_us", "us", true, kSteps,
           "TP gather of the looked-up heads: from the last member's arrival to done, so that one slow lookup does not "
           "show "
           "as another rank's collective.",
           kOneMember},
    Metric{MetricId::skew, "skew_us", "us", true, kSteps, "Last arrival at the TP gather minus the own arrival.",
           kOneMember, true},
    Metric{MetricId::wkv_gate, "wkv_gate_us", "us", true, kSteps,
           "wkv_start to wkv_done, plus from there (or from the end of the gather of wkv's output) to gate_done.",
           "the step has no Engram layer"},
    Metric{MetricId::wkv_gather, "wkv_gather_us", "us", true, kSteps,
           "TP gather of wkv's output columns: from the last member's arrival to done.",
           "the group has one member, or sequence parallel keeps the whole weight on each rank"},
    Metric{MetricId::wkv_gather_skew, "wkv_gather_skew_us", "us", true, kSteps,
           "Last arrival at the gather of wkv's output minus the own arrival.",
           "the group has one member, or sequence parallel keeps the whole weight on each rank", true},
    Metric{MetricId::expert, "expert_us", "us", false, kSteps,
           "Expert exchange (all-to-all over the EP group), summed over the backbone layers: from the last member's "
           "arrival "
           "to done.",
           "parallel.ep is 1"},
    Metric{MetricId::expert_skew, "expert_skew_us", "us", false, kSteps,
           "Last arrival at the expert exchange minus the own arrival, summed over the backbone layers.",
           "parallel.ep is 1", true},
    Metric{
        MetricId::collective, "collective_us", "us", false, kSteps,
        "All collectives of the step: the sum of ids_us, rows_us, gather_us, wkv_gather_us and expert_us of the rank.",
        "the step has no collective"},
    Metric{MetricId::backbone, "backbone_us", "us", false, kSteps,
           "Main compute in all backbone layers, without the expert exchange inside them.",
           "the model has no backbone"},
    Metric{MetricId::control, "control_us", "us", false, kBoth,
           "Negative control: a gather of the shape of a lookup of the own tokens, from a private buffer and on all "
           "units of the device, so that no arm can touch it.",
           "this run recorded no negative control"},
    Metric{MetricId::launch_latency, "launch_latency_us", "us", true, kLookup,
           "One lone launch of the lookup on an idle stream: from a mark ahead of it to its end. It holds what the "
           "host takes to submit the kernel, which windows of many launches hide.",
           "only workload.kind lookup has lone launches, in the first windows of a slot"},
    Metric{MetricId::rows_per_s, "rows_per_s", "rows/s", true, kBoth,
           "Stored rows that the rank's lookups read, over the time in which they ran. Padded heads and DEAD_ID are "
           "no rows. Of a replica: its slowest rank.",
           kNoTable, false, true},
    Metric{MetricId::aggregate_rows_per_s, "aggregate_rows_per_s", "rows/s", false, kLookup,
           "Rows a second of all readers together: the rows that every reader read during a window of the first one, "
           "over that window's length. A window of another reader that lies in it only in part counts with that "
           "part. One value a window of the first reader.",
           "only workload.kind lookup has it, and of its windows those which every reader read all through", false,
           true},
    Metric{MetricId::bare_gather, "bare_gather_us", "us", true, kBoth,
           "BW_effective: one launch of the bare row gather, in windows as the lookup's and a slot of its own at the "
           "end of a block: rows drawn as the lookup's, the same table, readers, grid cap and order; no "
           "dequantisation, no staging.",
           kNoBare},
    Metric{MetricId::bare_rows_per_s, "bare_rows_per_s", "rows/s", true, kBoth,
           "BW_effective in rows: stored rows that the bare gather read, over the time in which it ran.", kNoBare,
           false, true},
    Metric{MetricId::bare_aggregate_rows_per_s, "bare_aggregate_rows_per_s", "rows/s", false, kBoth,
           "BW_effective of all readers together, as aggregate_rows_per_s.",
           "experiment.bw_effective is off, or no window was read all through by every reader", false, true},
};

constexpr std::array kStatistics = {"p50", "q1", "q3", "p95", "p99", "p99.9", "min", "mad"};

std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Null: no such metric.
const Metric* find_metric(const std::string& name) noexcept {
  const std::string_view base = std::string_view(name).substr(0, name.find('.'));
  const auto found = std::find_if(kMetrics.begin(), kMetrics.end(), [&](const Metric& m) { return base == m.name; });
  return found == kMetrics.end() ? nullptr : &*found;
}

}  // namespace

bool has_workload(const Metric& metric, std::string_view kind) noexcept {
  return std::string_view(metric.workloads).find(kind) != std::string_view::npos;
}

std::span<const Metric> metrics() noexcept { return kMetrics; }

const Metric& metric(MetricId id) noexcept {
  return *std::find_if(kMetrics.begin(), kMetrics.end(), [id](const Metric& one) { return one.id == id; });
}

void check_metric_name(const std::string& name) {
  const std::string base = name.substr(0, name.find('.'));
  const auto found = std::find_if(kMetrics.begin(), kMetrics.end(), [&](const Metric& m) { return base == m.name; });
  if (found == kMetrics.end()) {
    const auto nearest = std::min_element(kMetrics.begin(), kMetrics.end(), [&](const Metric& a, const Metric& b) {
      return distance(base, a.name) < distance(base, b.name);
    });
    fail(Exit::usage, "unknown metric {}: the nearest is {} (docs/metrics.md lists all)", name, nearest->name);
  }
  std::string rest = base.size() < name.size() ? name.substr(base.size() + 1) : "";
  if (found->per_layer && rest.size() > 1 && rest[0] == 'l' && std::isdigit(static_cast<unsigned char>(rest[1])) != 0) {
    std::size_t end = 1;
    while (end < rest.size() && std::isdigit(static_cast<unsigned char>(rest[end])) != 0) ++end;
    rest = end == rest.size() ? "" : rest[end] == '.' ? rest.substr(end + 1) : rest;
  }
  if (rest.empty() && name.back() != '.') return;
  if (std::find(kStatistics.begin(), kStatistics.end(), rest) == kStatistics.end()) {
    fail(Exit::usage,
         "metric {}: '{}' is neither a layer (.lN{}) nor a statistic (p50, q1, q3, p95, p99, p99.9, min, mad)", name,
         rest, found->per_layer ? "" : ", which this metric has not");
  }
}

void check_guard(const std::string& name, const plan::Scenario& scenario) {
  const Metric* found = find_metric(name);
  if (found == nullptr) return;  // check_metric_name says so
  const char* kind = plan::name(scenario.workload.kind);
  if (has_workload(*found, kind)) return;
  fail(Exit::usage, "experiment.guards: {} is not a metric of workload.kind {} (docs/metrics.md); name others, or []",
       name, kind);
}

bool higher_is_better(const std::string& name) noexcept {
  const Metric* found = find_metric(name);
  return found != nullptr && found->rate;
}

void check_metric_exists(const std::string& name, const plan::Scenario& scenario) {
  const Metric* found = find_metric(name);
  if (found == nullptr) return;  // check_metric_name says so
  const char* kind = plan::name(scenario.workload.kind);
  if (!has_workload(*found, kind)) {
    fail(Exit::usage, "experiment.primary {}: it is a metric of workload.kind {}, this scenario's is {}", name,
         found->workloads, kind);
  }
  if (found->id == MetricId::bare_gather || found->id == MetricId::bare_rows_per_s ||
      found->id == MetricId::bare_aggregate_rows_per_s) {
    fail(Exit::usage,
         "experiment.primary {}: BW_effective is what lookup rates are set beside, and is not judged; use lookup_us "
         "or rows_per_s",
         name);
  }
  const plan::ParallelSpec& parallel = scenario.parallel;
  bool there = true;
  switch (found->id) {
    case MetricId::gather:
    case MetricId::skew:
      there = parallel.tp > 1;
      break;
    case MetricId::wkv_gather:
    case MetricId::wkv_gather_skew:
      there = parallel.tp > 1 && !parallel.sequence_parallel;
      break;
    case MetricId::ids:
    case MetricId::ids_skew:
    case MetricId::rows:
    case MetricId::rows_skew:
      there = parallel.table_mode == plan::TableMode::dp_sharded;
      break;
    case MetricId::expert:
    case MetricId::expert_skew:
      there = parallel.ep > 1;
      break;
    default:
      break;
  }
  if (!there) fail(Exit::usage, "experiment.primary {}: this scenario does not have it: {}", name, found->absent);
  const std::size_t at = name.find(".l");
  if (!found->per_layer || at == std::string::npos || at + 2 >= name.size() ||
      std::isdigit(static_cast<unsigned char>(name[at + 2])) == 0) {
    return;
  }
  const int layer = std::stoi(name.substr(at + 2));
  const auto& layers = scenario.model.base.layers;
  if (std::find(layers.begin(), layers.end(), layer) == layers.end()) {
    fail(Exit::usage, "experiment.primary {}: backbone layer {} has no table; layers with one: {}", name, layer,
         fmt::join(layers, ", "));
  }
}

void check_outcome(const std::string& name, const plan::Scenario& scenario) {
  constexpr std::array kOutcomes = {"ttft_ms", "itl_ms", "goodput_requests_per_s"};
  constexpr const char* kRule = "only the clients of a replay decide link 4: ttft_ms, itl_ms or goodput_requests_per_s";
  const std::string base = name.substr(0, name.find('.'));
  if (std::any_of(kMetrics.begin(), kMetrics.end(), [&](const Metric& one) { return base == one.name; })) {
    fail(Exit::usage, "experiment.outcome {}: it is a metric of a step, and {}", name, kRule);
  }
  if (std::none_of(kOutcomes.begin(), kOutcomes.end(), [&](const char* one) { return base == one; })) {
    fail(Exit::usage, "experiment.outcome {}: unknown; {}", name, kRule);
  }
  // No kind of workload that this version runs has clients; plan refuses replay before.
  fail(Exit::usage, "experiment.outcome {}: workload.kind {} has no clients; leave it null, and link 4 is not tested",
       name, plan::name(scenario.workload.kind));
}

std::vector<std::string> wait_metrics() {
  std::vector<std::string> names;
  for (const Metric& one : kMetrics) {
    if (one.wait) names.emplace_back(one.name);
  }
  return names;
}

std::string metrics_markdown() {
  std::string text =
      "# Metrics\n\n"
      "Made from the registry in `harness/measure/metrics_registry.cpp`; a test compares the two.\n\n"
      "A value belongs to one step of one replica and is that of the replica's slowest rank: the longest time, the "
      "lowest\n"
      "rate. The ranks' own values stay beside it. A metric of a layer is written `name.lN` (N = backbone layer, "
      "0-based); without the suffix it is the "
      "sum\n"
      "over the layers of one rank (a rate: all rows over all time). `.p50`, `.q1`, `.q3`, `.p95`, `.p99`, `.p99.9`, "
      "`.min`\n"
      "and `.mad` name a statistic over the steps. A metric that a configuration does not have is `null` with the "
      "reason.\n\n"
      "s and f are the start and the end of a lookup, r when it could have started, c when the main stream reaches its "
      "wait\n"
      "for it; all are device times, on the host's monotonic clock. A collective is counted from its last member's "
      "arrival.\n\n"
      "A metric that is judged `of step` is a wait: zero is a proper value of it, and a zero has no ratio. Arms are "
      "compared\nby what the wait adds to the baseline's step ([evidence.md](evidence.md)).\n\n"
      "| name | unit | per layer | workloads | judged | definition | absent where |\n|---|---|---|---|---|---|---|\n";
  for (const Metric& one : kMetrics) {
    text += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", one.name, one.unit, one.per_layer ? "yes" : "no",
                        one.workloads, one.wait ? "of step" : "by ratio", one.definition, one.absent);
  }
  return text;
}

}  // namespace eb::measure
