// The registry of metrics: one table gives name, unit, definition and the workloads that have it; docs/metrics.md is
// made from it. And the values of a step, from the timelines of its ranks. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/measure/timeline.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"

namespace eb::measure {

enum class MetricId : std::uint8_t {
  step,
  hash,
  lookup,
  queue,
  fifo_residual,
  exposed,
  recoverable,
  host_late,
  peer_late,
  other_late,
  front,
  ids,
  ids_skew,
  rows,
  rows_skew,
  gather,
  skew,
  wkv_gate,
  wkv_gather,
  wkv_gather_skew,
  expert,
  expert_skew,
  collective,
  backbone,
  control,
  launch_latency,
  rows_per_s,
  aggregate_rows_per_s,
  bare_gather,
  bare_rows_per_s,
  bare_aggregate_rows_per_s,
};

struct Metric {
  MetricId id{};
  const char* name;  // unit as suffix
  const char* unit;
  bool per_layer;         // name.lN beside the sum over layers
  const char* workloads;  // "steps", "lookup, steps"
  const char* definition;
  const char* absent;  // why a configuration may not have it
  // A wait, which may rightly be zero and then has no ratio: arms are compared by what it adds to the baseline's step.
  bool wait = false;
  bool rate = false;  // more is better; a replica's value is the least of its ranks', and layers do not add up
};

[[nodiscard]] std::span<const Metric> metrics() noexcept;
[[nodiscard]] const Metric& metric(MetricId id) noexcept;
// Whether steps of workload.kind `kind` (plan::name) can have it.
[[nodiscard]] bool has_workload(const Metric& metric, std::string_view kind) noexcept;
// Statistic suffixes a metric may carry: p50, q1, q3, p95, p99, p99.9, min, mad.
// Errors: Error(usage) "unknown metric X: nearest is Y" for a name (with or without .lN and a statistic) not in the
// registry.
void check_metric_name(const std::string& name);
// experiment.primary. Errors: Error(usage) where no step of `scenario` can have the metric: another workload's, a layer
// without a table, a collective that its groups do not have, a figure of the machine (BW_effective).
void check_metric_exists(const std::string& name, const plan::Scenario& scenario);
// For experiment.outcome. Errors: Error(usage) for a metric of a step, an unknown name, or a workload without clients.
void check_outcome(const std::string& name, const plan::Scenario& scenario);
// Names of the metrics that are waits.
[[nodiscard]] std::vector<std::string> wait_metrics();
// experiment.guards. Errors: Error(usage) where the workload of `scenario` does not have the metric.
void check_guard(const std::string& name, const plan::Scenario& scenario);
// Of a metric's name, with or without .lN and a statistic: false for times. Unknown names: false.
[[nodiscard]] bool higher_is_better(const std::string& name) noexcept;
// docs/metrics.md.
[[nodiscard]] std::string metrics_markdown();

// A column of values: a metric, summed over layers (layer -1) or of one layer.
struct Column {
  MetricId id{};
  int layer = -1;
  std::string name;
};

// Values of one step. A value that the configuration does not have is NaN; here and nowhere in a file.
struct StepValues {
  std::uint32_t step = 0;
  std::uint16_t slot = 0;
  std::vector<std::vector<double>> per_rank;     // [rank][column]
  std::vector<std::vector<double>> per_replica;  // [replica][column]: of the replica's slowest rank
};

class StepMetrics {
 public:
  // `engram_layers`: backbone layers with a table, ascending.
  StepMetrics(const plan::RunLayout& layout, std::vector<int> engram_layers);

  [[nodiscard]] const std::vector<Column>& columns() const noexcept { return columns_; }
  [[nodiscard]] int replicas() const noexcept { return replicas_; }

  // `ranks[r]` = timeline of rank r, the same steps for all; an idle rank's steps are without events. `windows`: of the
  // lookup alone; the ranks' windows do not begin together, so that a replica's is its slowest rank's. Errors:
  // Error(failure) where the ranks' steps differ.
  [[nodiscard]] std::vector<StepValues> values(const std::vector<std::vector<RankStep>>& ranks,
                                               bool windows = false) const;

 private:
  void set_aggregate(const std::vector<std::vector<RankStep>>& ranks, std::vector<StepValues>& values, bool bare) const;

  plan::RunLayout layout_;
  std::vector<int> layers_;
  std::vector<Column> columns_;
  int replicas_ = 0;
};

}  // namespace eb::measure
