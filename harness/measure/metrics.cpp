#include "harness/measure/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/base/error.h"

namespace eb::measure {

namespace {

constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

double us(std::int64_t ns) { return static_cast<double>(ns) / 1000.0; }

void add(double& sum, double value) { sum = std::isnan(sum) ? value : sum + value; }

const std::vector<int>* group_of(const std::vector<std::vector<int>>& groups, int rank) {
  for (const auto& group : groups) {
    if (std::find(group.begin(), group.end(), rank) != group.end()) return &group;
  }
  return nullptr;
}

// Stored rows that were read over a time.
struct Rate {
  double rows = 0;
  std::int64_t ns = 0;

  void add(const Span& span) {
    rows += static_cast<double>(span.rows * span.launches);
    ns += span.done_ns - span.start_ns;
  }
  // NaN where nothing was read.
  [[nodiscard]] double per_s() const { return rows > 0 && ns > 0 ? rows * 1e9 / static_cast<double>(ns) : kAbsent; }
};

std::vector<Span> lookup_spans(const RankStep& step) {
  std::vector<Span> spans;
  for (const LookupTimes& one : step.lookups) {
    if (one.start_ns == kNoTime || one.done_ns == kNoTime) continue;
    spans.push_back({one.layer, one.start_ns, one.done_ns, one.launches, one.rows});
  }
  return spans;
}

const CollectiveTimes* find(const RankStep& step, Collective object, int layer) {
  for (const CollectiveTimes& one : step.collectives) {
    if (one.object == object && one.layer == layer) return &one;
  }
  return nullptr;
}

const LookupTimes* find_lookup(const RankStep& step, int layer) {
  for (const LookupTimes& one : step.lookups) {
    if (one.layer == layer) return &one;
  }
  return nullptr;
}

// Main compute of a backbone layer: its span without the expert exchange inside it.
std::int64_t compute_ns(const RankStep& step, const LayerTimes& layer) {
  std::int64_t time = layer.done_ns - layer.start_ns;
  if (const CollectiveTimes* expert = find(step, Collective::expert, layer.layer)) {
    const std::int64_t from = std::max(expert->arrival_ns, layer.start_ns);
    const std::int64_t until = std::min(expert->done_ns, layer.done_ns);
    time -= std::max<std::int64_t>(0, until - from);
  }
  return time;
}

// Rows a second of all readers in [from, until]; NaN where one of them did not read all through it. `spans` of a rank
// in the order of time; empty: no reader.
double concurrent_rate(const std::vector<std::vector<Span>>& spans, std::int64_t from, std::int64_t until) {
  double rows = 0;
  for (const std::vector<Span>& own : spans) {
    if (own.empty()) continue;
    if (own.front().start_ns > from || own.back().done_ns < until) return kAbsent;
    auto span = std::partition_point(own.begin(), own.end(), [&](const Span& one) { return one.done_ns <= from; });
    for (; span != own.end() && span->start_ns < until; ++span) {
      const auto part = static_cast<double>(std::min(until, span->done_ns) - std::max(from, span->start_ns));
      rows +=
          static_cast<double>(span->rows * span->launches) * part / static_cast<double>(span->done_ns - span->start_ns);
    }
  }
  return rows > 0 && until > from ? rows * 1e9 / static_cast<double>(until - from) : kAbsent;
}

struct CollectiveMetrics {
  MetricId time;
  MetricId skew;
};

CollectiveMetrics ids_of(Collective object) {
  switch (object) {
    case Collective::ids:
      return {MetricId::ids, MetricId::ids_skew};
    case Collective::rows:
      return {MetricId::rows, MetricId::rows_skew};
    case Collective::heads:
      return {MetricId::gather, MetricId::skew};
    case Collective::wkv:
      return {MetricId::wkv_gather, MetricId::wkv_gather_skew};
    case Collective::expert:
      return {MetricId::expert, MetricId::expert_skew};
  }
  return {MetricId::gather, MetricId::skew};
}

// Fills the values of one rank and step. `ranks` = the same step of all ranks: collectives are joined over their
// members.
class RankValues {
 public:
  RankValues(const plan::RunLayout& layout, const std::vector<int>& engram_layers, const std::vector<Column>& columns,
             const std::vector<const RankStep*>& ranks, int rank, std::vector<double>& out)
      : layout_(layout),
        engram_layers_(engram_layers),
        columns_(columns),
        ranks_(ranks),
        rank_(rank),
        step_(*ranks[static_cast<std::size_t>(rank)]),
        out_(out) {}

  void fill() {
    if (step_.start_ns != kNoTime) put(MetricId::step, -1, step_.done_ns - step_.start_ns);
    if (step_.control_start_ns != kNoTime && step_.control_done_ns != kNoTime) {
      put(MetricId::control, -1, step_.control_done_ns - step_.control_start_ns);
    }
    hash();
    for (const CollectiveTimes& one : step_.collectives) collective(one);
    for (const LookupTimes& one : step_.lookups) lookup(one);
    for (const GateTimes& one : step_.gates) gate(one);
    for (const LayerTimes& one : step_.backbone) backbone(one);
    for (const Span& one : step_.singles) put(MetricId::launch_latency, one.layer, one.done_ns - one.start_ns);
    for (const Span& one : step_.bare) put_launch(MetricId::bare_gather, one);
    rates(lookup_spans(step_), MetricId::rows_per_s);
    rates(step_.bare, MetricId::bare_rows_per_s);
  }

 private:
  // Into the layer's column and into the sum over layers.
  void put(MetricId id, int layer, std::int64_t ns) { put_us(id, layer, us(ns)); }
  void put_us(MetricId id, int layer, double value) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].id == id && (columns_[i].layer == -1 || columns_[i].layer == layer)) add(out_[i], value);
    }
  }
  // Time of one launch.
  void put_launch(MetricId id, const Span& span) {
    put_us(id, span.layer, us(span.done_ns - span.start_ns) / static_cast<double>(span.launches));
  }
  // Rows over time, of each layer and of all of them together.
  void rates(const std::vector<Span>& spans, MetricId id) {
    Rate all;
    for (const Span& span : spans) {
      Rate one;
      one.add(span);
      all.add(span);
      set(id, span.layer, one);
    }
    set(id, -1, all);
  }
  void set(MetricId id, int layer, const Rate& rate) {
    const double value = rate.per_s();
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].id == id && columns_[i].layer == layer && !std::isnan(value)) out_[i] = value;
    }
  }

  [[nodiscard]] const RankStep& peer(int rank) const { return *ranks_[static_cast<std::size_t>(rank)]; }

  // The own rank's group for a collective; null: it has none.
  [[nodiscard]] const std::vector<int>* group(Collective object) const {
    switch (object) {
      case Collective::ids:
      case Collective::rows:
        return group_of(layout_.edp_groups, rank_);
      case Collective::expert:
        return group_of(layout_.ep_groups, rank_);
      case Collective::heads:
      case Collective::wkv:
        return group_of(layout_.tp_groups, rank_);
    }
    return nullptr;
  }

  void hash() {
    if (step_.ids_ready_ns == kNoTime) return;
    const CollectiveTimes* ids = find(step_, Collective::ids, -1);
    const std::int64_t exchange = ids != nullptr && ids->done_ns != kNoTime ? ids->done_ns - ids->arrival_ns : 0;
    put(MetricId::hash, -1, step_.ids_ready_ns - step_.start_ns - exchange);
  }

  void collective(const CollectiveTimes& one) {
    if (one.arrival_ns == kNoTime || one.done_ns == kNoTime) return;
    std::int64_t last_arrival = one.arrival_ns;
    if (const std::vector<int>* members = group(one.object)) {
      for (const int member : *members) {
        const CollectiveTimes* other = find(peer(member), one.object, one.layer);
        if (other != nullptr) last_arrival = std::max(last_arrival, other->arrival_ns);
      }
    }
    const auto [time, skew] = ids_of(one.object);
    // A member may leave before the last one's arrival is stamped; a collective never takes less than no time.
    const std::int64_t taken = std::max<std::int64_t>(0, one.done_ns - last_arrival);
    put(time, one.layer, taken);
    put(skew, one.layer, last_arrival - one.arrival_ns);
    put(MetricId::collective, -1, taken);
  }

  // When the last other member of the collective that follows the wait could have joined it without its own wait: the
  // row exchange where rows are exchanged, else the TP gather.
  [[nodiscard]] std::int64_t peer_free_ns(int layer) const {
    const bool rows = find(step_, Collective::rows, layer) != nullptr;
    if (!rows && find(step_, Collective::heads, layer) == nullptr) return kNoTime;
    const std::vector<int>* members = group(rows ? Collective::rows : Collective::heads);
    std::int64_t time = kNoTime;
    if (members == nullptr) return time;
    for (const int member : *members) {
      if (member == rank_) continue;
      const LookupTimes* other = find_lookup(peer(member), layer);
      if (other != nullptr && other->arrival_ns != kNoTime) time = std::max(time, main_free_ns(*other));
    }
    return time;
  }

  void lookup(const LookupTimes& one) {
    if (one.start_ns == kNoTime || one.done_ns == kNoTime) return;
    put_launch(MetricId::lookup, {one.layer, one.start_ns, one.done_ns, one.launches, one.rows});
    if (one.arrival_ns == kNoTime) return;  // the lookup alone: no consumer, and no queue behind a model
    if (one.ready_ns != kNoTime) {
      put(MetricId::queue, one.layer, one.queue_ns());
      if (one.previous_done_ns != kNoTime) put(MetricId::fifo_residual, one.layer, one.fifo_residual_ns());
    }
    if (!one.complete()) return;
    const ExposedWait wait = split_wait(one, peer_free_ns(one.layer));
    put(MetricId::exposed, one.layer, one.exposed_ns());
    put(MetricId::recoverable, one.layer, wait.recoverable_ns);
    put(MetricId::host_late, one.layer, wait.host_late_ns);
    put(MetricId::peer_late, one.layer, wait.peer_late_ns);
    put(MetricId::other_late, one.layer, wait.other_ns);
  }

  void gate(const GateTimes& one) {
    if (one.wkv_start_ns == kNoTime || one.wkv_done_ns == kNoTime || one.gate_done_ns == kNoTime) return;
    const CollectiveTimes* gathered = find(step_, Collective::wkv, one.layer);
    const std::int64_t from = gathered != nullptr && gathered->done_ns != kNoTime ? gathered->done_ns : one.wkv_done_ns;
    put(MetricId::wkv_gate, one.layer, one.wkv_done_ns - one.wkv_start_ns + one.gate_done_ns - from);
  }

  void backbone(const LayerTimes& one) {
    if (one.start_ns == kNoTime || one.done_ns == kNoTime) return;
    const std::int64_t time = compute_ns(step_, one);
    put(MetricId::backbone, -1, time);
    // The consumer of Engram layer N stands before backbone layer N.
    const auto consumer = std::upper_bound(engram_layers_.begin(), engram_layers_.end(), one.layer);
    if (consumer != engram_layers_.end()) put(MetricId::front, *consumer, time);
  }

  const plan::RunLayout& layout_;
  const std::vector<int>& engram_layers_;
  const std::vector<Column>& columns_;
  const std::vector<const RankStep*>& ranks_;
  int rank_;
  const RankStep& step_;
  std::vector<double>& out_;
};

}  // namespace

StepMetrics::StepMetrics(const plan::RunLayout& layout, std::vector<int> engram_layers)
    : layout_(layout), layers_(std::move(engram_layers)) {
  for (const Metric& one : metrics()) {
    columns_.push_back({one.id, -1, one.name});
    if (!one.per_layer) continue;
    for (const int layer : layers_) columns_.push_back({one.id, layer, fmt::format("{}.l{}", one.name, layer)});
  }
  for (const plan::RankPlace& place : layout_.ranks) replicas_ = std::max(replicas_, place.replica + 1);
}

std::vector<StepValues> StepMetrics::values(const std::vector<std::vector<RankStep>>& ranks, bool windows) const {
  if (ranks.size() != layout_.ranks.size()) {
    fail(Exit::failure, "events of {} ranks, but the run has {}", ranks.size(), layout_.ranks.size());
  }
  std::vector<StepValues> result;
  for (std::size_t i = 0; i < ranks.front().size(); ++i) {
    StepValues values;
    std::vector<const RankStep*> steps;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (ranks[r].size() != ranks.front().size() || ranks[r][i].step != ranks.front()[i].step) {
        fail(Exit::failure, "rank {} reports {} steps, rank 0 {}: their steps do not match", r, ranks[r].size(),
             ranks.front().size());
      }
      steps.push_back(&ranks[r][i]);
    }
    values.step = steps.front()->step;
    values.slot = steps.front()->slot;
    values.per_rank.assign(ranks.size(), std::vector<double>(columns_.size(), kAbsent));
    values.per_replica.assign(static_cast<std::size_t>(replicas_), std::vector<double>(columns_.size(), kAbsent));
    std::vector<std::int64_t> first(static_cast<std::size_t>(replicas_), std::numeric_limits<std::int64_t>::max());
    std::vector<std::int64_t> last(static_cast<std::size_t>(replicas_), std::numeric_limits<std::int64_t>::min());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      RankValues(layout_, layers_, columns_, steps, static_cast<int>(r), values.per_rank[r]).fill();
      const auto replica = static_cast<std::size_t>(layout_.ranks[r].replica);
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        double& slowest = values.per_replica[replica][c];
        const double own = values.per_rank[r][c];
        const bool rate = metric(columns_[c].id).rate;
        if (!std::isnan(own) && (std::isnan(slowest) || (rate ? own < slowest : own > slowest))) slowest = own;
      }
      if (steps[r]->start_ns == kNoTime) continue;  // idle, or windows of the bare gather
      first[replica] = std::min(first[replica], steps[r]->start_ns);
      last[replica] = std::max(last[replica], steps[r]->done_ns);
    }
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].id != MetricId::step) continue;
      for (std::size_t d = 0; d < first.size() && !windows; ++d) {
        if (first[d] < last[d]) values.per_replica[d][c] = us(last[d] - first[d]);
      }
    }
    result.push_back(std::move(values));
  }
  if (windows) set_aggregate(ranks, result, false);
  set_aggregate(ranks, result, true);
  return result;
}

// The rate of all readers together, seen from the windows of the first of them: the rows that every reader read in that
// time (of its windows that lie in it only in part, the same part of their rows), over the window's length. A window
// that some reader did not read all through has no value. It stands with the first reader and its replica.
void StepMetrics::set_aggregate(const std::vector<std::vector<RankStep>>& ranks, std::vector<StepValues>& values,
                                bool bare) const {
  const auto spans_of = [&](const RankStep& step) {
    std::vector<Span> found = bare ? step.bare : lookup_spans(step);
    std::erase_if(found, [](const Span& span) { return span.rows == 0 || span.done_ns <= span.start_ns; });
    return found;
  };
  std::vector<std::vector<Span>> spans(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const RankStep& step : ranks[r]) {
      const std::vector<Span> one = spans_of(step);
      spans[r].insert(spans[r].end(), one.begin(), one.end());
    }
  }
  const auto first = static_cast<std::size_t>(
      std::find_if(spans.begin(), spans.end(), [](const auto& own) { return !own.empty(); }) - spans.begin());
  if (first == ranks.size()) return;
  const MetricId id = bare ? MetricId::bare_aggregate_rows_per_s : MetricId::aggregate_rows_per_s;
  const auto column = static_cast<std::size_t>(
      std::find_if(columns_.begin(), columns_.end(), [&](const Column& one) { return one.id == id; }) -
      columns_.begin());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::vector<Span> window = spans_of(ranks[first][i]);
    if (window.empty()) continue;
    const double rate = concurrent_rate(spans, window.front().start_ns, window.back().done_ns);
    values[i].per_rank[first][column] = rate;
    values[i].per_replica[static_cast<std::size_t>(layout_.ranks[first].replica)][column] = rate;
  }
}

}  // namespace eb::measure
