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

// Values of one rank and step, by metric and layer; the sum over layers is kept beside.
class Row {
 public:
  Row(const std::vector<Column>& columns, std::vector<double>& out) : columns_(columns), out_(out) {}
  void put(MetricId id, int layer, std::int64_t ns) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].id == id && (columns_[i].layer == -1 || columns_[i].layer == layer)) add(out_[i], us(ns));
    }
  }

 private:
  const std::vector<Column>& columns_;
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

void StepMetrics::rank_values(const std::vector<const RankStep*>& ranks, std::size_t rank,
                              std::vector<double>& out) const {
  const RankStep& step = *ranks[rank];
  Row row(columns_, out);
  row.put(MetricId::step, -1, step.done_ns - step.start_ns);
  if (step.control_start_ns != kNoTime && step.control_done_ns != kNoTime) {
    row.put(MetricId::control, -1, step.control_done_ns - step.control_start_ns);
  }
  // Collectives, joined over the members of the group.
  for (const CollectiveTimes& one : step.collectives) {
    if (one.arrival_ns == kNoTime || one.done_ns == kNoTime) continue;
    const auto& groups = one.object == Collective::ids || one.object == Collective::rows ? layout_.edp_groups
                         : one.object == Collective::expert                              ? layout_.ep_groups
                                                                                         : layout_.tp_groups;
    std::int64_t last_arrival = one.arrival_ns;
    if (const std::vector<int>* group = group_of(groups, static_cast<int>(rank))) {
      for (const int member : *group) {
        const CollectiveTimes* other = find(*ranks[static_cast<std::size_t>(member)], one.object, one.layer);
        if (other != nullptr) last_arrival = std::max(last_arrival, other->arrival_ns);
      }
    }
    const auto [time, skew] = ids_of(one.object);
    // A member may leave before the last one's arrival is stamped; a collective never takes less than no time.
    const std::int64_t taken = std::max<std::int64_t>(0, one.done_ns - last_arrival);
    row.put(time, one.layer, taken);
    row.put(skew, one.layer, last_arrival - one.arrival_ns);
    row.put(MetricId::collective, -1, taken);
  }
  if (step.ids_ready_ns != kNoTime) {
    const CollectiveTimes* ids = find(step, Collective::ids, -1);
    const std::int64_t exchange = ids != nullptr && ids->done_ns != kNoTime ? ids->done_ns - ids->arrival_ns : 0;
    row.put(MetricId::hash, -1, step.ids_ready_ns - step.start_ns - exchange);
  }
  for (const LookupTimes& lookup : step.lookups) {
    if (lookup.start_ns == kNoTime || lookup.done_ns == kNoTime) continue;
    row.put(MetricId::lookup, lookup.layer, lookup.length_ns());
    if (lookup.ready_ns != kNoTime) {
      row.put(MetricId::queue, lookup.layer, lookup.queue_ns());
      if (lookup.previous_done_ns != kNoTime) {
        row.put(MetricId::fifo_residual, lookup.layer, lookup.fifo_residual_ns());
      }
    }
    if (!lookup.complete()) continue;
    // The collective that follows the wait: the row exchange where rows are exchanged, else the TP gather.
    const bool rows = find(step, Collective::rows, lookup.layer) != nullptr;
    const bool heads = find(step, Collective::heads, lookup.layer) != nullptr;
    std::int64_t peer_free = kNoTime;
    if (rows || heads) {
      if (const auto* group = group_of(rows ? layout_.edp_groups : layout_.tp_groups, static_cast<int>(rank))) {
        for (const int member : *group) {
          if (member == static_cast<int>(rank)) continue;
          const LookupTimes* peer = find_lookup(*ranks[static_cast<std::size_t>(member)], lookup.layer);
          if (peer != nullptr && peer->arrival_ns != kNoTime) peer_free = std::max(peer_free, main_free_ns(*peer));
        }
      }
    }
    const ExposedWait wait = split_wait(lookup, peer_free);
    row.put(MetricId::exposed, lookup.layer, lookup.exposed_ns());
    row.put(MetricId::recoverable, lookup.layer, wait.recoverable_ns);
    row.put(MetricId::host_late, lookup.layer, wait.host_late_ns);
    row.put(MetricId::peer_late, lookup.layer, wait.peer_late_ns);
    row.put(MetricId::other_late, lookup.layer, wait.other_ns);
  }
  for (const GateTimes& gate : step.gates) {
    if (gate.wkv_start_ns == kNoTime || gate.wkv_done_ns == kNoTime || gate.gate_done_ns == kNoTime) continue;
    const CollectiveTimes* gathered = find(step, Collective::wkv, gate.layer);
    const std::int64_t from =
        gathered != nullptr && gathered->done_ns != kNoTime ? gathered->done_ns : gate.wkv_done_ns;
    row.put(MetricId::wkv_gate, gate.layer, gate.wkv_done_ns - gate.wkv_start_ns + gate.gate_done_ns - from);
  }
  for (const LayerTimes& layer : step.backbone) {
    if (layer.start_ns == kNoTime || layer.done_ns == kNoTime) continue;
    const std::int64_t time = compute_ns(step, layer);
    row.put(MetricId::backbone, -1, time);
    // The consumer of Engram layer N stands before backbone layer N.
    const auto consumer = std::upper_bound(layers_.begin(), layers_.end(), layer.layer);
    if (consumer != layers_.end()) row.put(MetricId::front, *consumer, time);
  }
}

std::vector<StepValues> StepMetrics::values(const std::vector<std::vector<RankStep>>& ranks) const {
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
      rank_values(steps, r, values.per_rank[r]);
      const auto replica = static_cast<std::size_t>(layout_.ranks[r].replica);
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        double& most = values.per_replica[replica][c];
        const double own = values.per_rank[r][c];
        if (!std::isnan(own) && (std::isnan(most) || own > most)) most = own;
      }
      first[replica] = std::min(first[replica], steps[r]->start_ns);
      last[replica] = std::max(last[replica], steps[r]->done_ns);
    }
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].id != MetricId::step) continue;
      for (std::size_t d = 0; d < first.size(); ++d) values.per_replica[d][c] = us(last[d] - first[d]);
    }
    result.push_back(std::move(values));
  }
  return result;
}

}  // namespace eb::measure
