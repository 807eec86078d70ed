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
    put(MetricId::step, -1, step_.done_ns - step_.start_ns);
    if (step_.control_start_ns != kNoTime && step_.control_done_ns != kNoTime) {
      put(MetricId::control, -1, step_.control_done_ns - step_.control_start_ns);
    }
    hash();
    for (const CollectiveTimes& one : step_.collectives) collective(one);
    for (const LookupTimes& one : step_.lookups) lookup(one);
    for (const GateTimes& one : step_.gates) gate(one);
    for (const LayerTimes& one : step_.backbone) backbone(one);
  }

 private:
  // Into the layer's column and into the sum over layers.
  void put(MetricId id, int layer, std::int64_t ns) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].id == id && (columns_[i].layer == -1 || columns_[i].layer == layer)) add(out_[i], us(ns));
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
    put(MetricId::lookup, one.layer, one.length_ns());
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
      RankValues(layout_, layers_, columns_, steps, static_cast<int>(r), values.per_rank[r]).fill();
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
