#include "harness/supervise/memory_need.h"

#include <algorithm>
#include <map>
#include <set>

#include "harness/base/error.h"
#include "harness/plan/ledger_input.h"
#include "harness/rank/backend_factory.h"
#include "placement/huge_pages.h"
#include "placement/policy.h"

namespace eb::supervise {

namespace {

// Of a rank without tables and weights: code, libraries, thread stacks, BLAS buffers. Measured, rounded up:
// docs/design/002-processes.md.
constexpr std::int64_t kProcessBytes = 32LL << 20;
constexpr std::int64_t kWeightElementBytes = 4;  // the CPU's matrices are float32
// A GPU's weights and buffers lie in its own memory. The host makes one matrix at a time; CUDA's and the libraries' own
// memory of a process is about this much.
constexpr std::int64_t kCudaProcessBytes = 1LL << 30;
constexpr std::int64_t kBf16Bytes = 2;

std::int64_t weights_of_rank(const plan::Scenario& scenario, const engram::Geometry& geometry) {
  if (scenario.workload.kind == plan::WorkloadKind::lookup) return 0;
  const engram::Model& model = scenario.model.base;
  const plan::Backbone& backbone = scenario.model.backbone;
  const std::int64_t wkv = std::int64_t{model.hidden} * (model.hc_mult + 1) * geometry.columns * model.dim;
  const std::int64_t parts = scenario.parallel.sequence_parallel ? 1 : scenario.parallel.tp;
  const auto layers = static_cast<std::int64_t>(geometry.layers.size());
  const auto backbone_elements = static_cast<std::int64_t>(
      static_cast<double>(backbone.layers) * static_cast<double>(backbone.weight_bytes_per_layer) * backbone.scale);
  return (layers * wkv / parts + backbone_elements / scenario.parallel.tp) * kWeightElementBytes;
}

std::int64_t buffers_of_rank(const plan::Scenario& scenario, const plan::RunLayout& layout,
                             const engram::Geometry& geometry) {
  const engram::Model& model = scenario.model.base;
  const std::int64_t tokens = scenario.workload.max_tokens(scenario.parallel.dp);
  const std::int64_t staging =
      engram::make_ledger(geometry, plan::ledger_input(scenario, layout)).staging_bytes_per_rank;
  const std::int64_t group = scenario.parallel.table_mode == plan::TableMode::dp_sharded ? layout.edp_group_size : 1;
  const auto layers = static_cast<std::int64_t>(geometry.layers.size());
  if (scenario.workload.kind == plan::WorkloadKind::lookup) {
    // Ids of all launches of a slot: of a large batch a launch and a lone one, of a small one as many as fill a window.
    constexpr std::int64_t kWindowTokens = 1024;
    const std::int64_t window = std::max({2 * tokens, kWindowTokens, scenario.workload.window_launches * tokens});
    return staging + window * group * scenario.workload.steps * geometry.columns * layers * 4;
  }
  const std::int64_t gathered = tokens * geometry.columns * model.dim * kBf16Bytes * layers * 2 * group;
  const std::int64_t kv = tokens * model.hidden * (model.hc_mult + 1) * kBf16Bytes * 2;
  const std::int64_t hidden = tokens * model.hidden * model.hc_mult * kBf16Bytes * 4;
  return staging + gathered + kv + hidden;
}

// What a slot keeps until its end grows with its steps. Measured at 260 bytes an event with all its copies in the rank
// and in the supervisor (45,000 steps against 5,000); events counted from above.
std::int64_t records_of_ranks(const plan::Scenario& scenario, const engram::Geometry& geometry) {
  constexpr std::int64_t kEventBytes = 260;
  constexpr std::int64_t kContextBytes = 48;  // a token's look-back, position and mask, on the host and uploaded
  const std::int64_t tables = static_cast<std::int64_t>(geometry.layers.size());
  const std::int64_t layer_events = scenario.parallel.ep > 1 ? 4 : 2;
  const std::int64_t events = 6 + 16 * tables + layer_events * scenario.model.backbone.layers;
  const std::int64_t tokens = scenario.workload.max_tokens(scenario.parallel.dp);
  const auto step = static_cast<double>(events * kEventBytes + tokens * kContextBytes);
  const double bytes = step * static_cast<double>(scenario.workload.steps) * scenario.ranks();
  return static_cast<std::int64_t>(std::min(bytes, 1e18));  // beyond any machine; the sum with the rest still fits
}

// Pages that a policy keeps on their node: where that is full, the kernel ends the process, or (interleave) puts them
// elsewhere, and the run fails for shares that differ.
void add_node_need(const plan::StorageSpec& storage, const plan::RunLayout& layout, bool allow_degraded,
                   placement::MemoryNeed& need) {
  if (storage.backing == plan::Backing::stub || storage.backing == plan::Backing::hbm) return;
  for (const plan::BackingPlace& backing : layout.backings) {
    if (backing.node >= 0) need.node_bytes[backing.node] += backing.bytes;
    if (backing.node >= 0) continue;
    std::map<int, std::int64_t> weights;
    if (storage.policy.kind == plan::PolicyKind::weighted) {
      for (const auto& [node, weight] : storage.policy.weights) weights[node] = weight;
    } else if (storage.policy.kind == plan::PolicyKind::interleave && !allow_degraded) {
      for (const int node : storage.policy.nodes) weights[node] = 1;  // `all` names none
    }
    std::int64_t sum = 0;
    for (const auto& [node, weight] : weights) sum += weight;
    for (const auto& [node, weight] : weights) {
      need.node_bytes[node] += static_cast<std::int64_t>(static_cast<double>(backing.bytes) *
                                                         static_cast<double>(weight) / static_cast<double>(sum));
    }
  }
  if (!need.node_bytes.empty() || storage.policy.kind != plan::PolicyKind::bind) return;
  need.bind_nodes = storage.policy.nodes;
  for (const plan::BackingPlace& backing : layout.backings) need.bind_bytes += backing.bytes;
}

// The only node that whoever touches a backing first may take memory from, by storage.bind_ranks; -1: there are
// several, or all.
int node_of_touchers(const plan::Scenario& scenario, const plan::BackingPlace& backing,
                     const std::vector<RankBinding>& bindings) {
  const bool leader_alone =
      scenario.storage.policy.kind == plan::PolicyKind::none && scenario.storage.pretouch != plan::PretouchKind::none;
  const std::vector<int> touchers = leader_alone ? std::vector<int>{backing.leader} : backing.readers;
  std::set<int> nodes;
  for (const int rank : touchers) {
    const std::vector<int>& bound = bindings.at(static_cast<std::size_t>(rank)).memory_nodes;
    nodes.insert(bound.size() == 1 ? bound.front() : -1);
  }
  return nodes.size() == 1 ? *nodes.begin() : -1;
}

// storage.bind_ranks binds what the ranks have for themselves, and tables without a policy of their own.
void add_bound_ranks(const plan::Scenario& scenario, const plan::RunLayout& layout,
                     const std::vector<RankBinding>& bindings, MemoryEstimate& estimate) {
  if (bindings.empty()) return;
  const std::int64_t own = (estimate.weight_bytes + estimate.buffer_bytes + estimate.process_bytes) / scenario.ranks();
  for (const RankBinding& one : bindings) {
    if (one.memory_nodes.size() == 1) estimate.need.node_bytes[one.memory_nodes.front()] += own;
  }
  const plan::StorageSpec& storage = scenario.storage;
  const bool placed = storage.policy.kind != plan::PolicyKind::none && storage.policy.kind != plan::PolicyKind::stock;
  const bool elsewhere = storage.backing == plan::Backing::stub || storage.backing == plan::Backing::hbm;
  if (placed || elsewhere || plan::is_hugetlb(storage.backing)) return;
  for (const plan::BackingPlace& backing : layout.backings) {
    if (backing.node >= 0) continue;  // a copy is bound to its node
    const int node = node_of_touchers(scenario, backing, bindings);
    if (node >= 0) estimate.need.node_bytes[node] += backing.bytes;
  }
}

}  // namespace

std::string MemoryEstimate::text() const {
  return fmt::format("tables {}, weights {}, buffers {}, messages {}, processes {}, records {}",
                     placement::human_bytes(table_bytes), placement::human_bytes(weight_bytes),
                     placement::human_bytes(buffer_bytes), placement::human_bytes(arena_bytes),
                     placement::human_bytes(process_bytes), placement::human_bytes(record_bytes));
}

MemoryEstimate estimate_memory(const plan::Scenario& scenario, const plan::RunLayout& layout,
                               const engram::Geometry& geometry, std::int64_t arena_bytes, const Terms& terms) {
  MemoryEstimate estimate;
  const std::int64_t ranks = scenario.ranks();
  if (scenario.storage.backing != plan::Backing::stub) {
    for (const plan::BackingPlace& backing : layout.backings) estimate.table_bytes += backing.bytes;
  }
  estimate.arena_bytes = arena_bytes;
  estimate.weight_bytes = ranks * weights_of_rank(scenario, geometry);
  estimate.buffer_bytes = ranks * buffers_of_rank(scenario, layout, geometry);
  estimate.process_bytes = ranks * kProcessBytes;
  estimate.record_bytes = records_of_ranks(scenario, geometry);
  placement::MemoryNeed& need = estimate.need;
  if (rank::resolve_backend(scenario.device.backend) == plan::BackendKind::cuda) {
    const auto layers = std::max(1, scenario.model.backbone.layers);
    estimate.weight_bytes /= layers;
    estimate.buffer_bytes = 0;
    estimate.process_bytes = ranks * kCudaProcessBytes;
  }
  // hbm: while the tables are made, before they go to the device.
  const plan::Backing backing = scenario.storage.backing;
  const bool anonymous =
      backing == plan::Backing::anon || backing == plan::Backing::anon_thp || backing == plan::Backing::hbm;
  // A pool's pages are no free memory any more: require_huge_pages() has them.
  (plan::is_hugetlb(backing) ? estimate.pool_bytes
   : anonymous               ? need.private_bytes
                             : need.shared_bytes) += estimate.table_bytes;
  const bool in_shm = backing == plan::Backing::shm || (backing == plan::Backing::shm_thp &&
                                                        placement::shm_thp_source() == placement::ThpSource::dev_shm);
  if (in_shm) need.shm_file_bytes = estimate.table_bytes;
  if (!plan::is_hugetlb(backing)) add_node_need(scenario.storage, layout, terms.allow_degraded, need);
  need.shared_bytes += estimate.arena_bytes;
  need.private_bytes += estimate.weight_bytes + estimate.buffer_bytes + estimate.process_bytes + estimate.record_bytes;
  add_bound_ranks(scenario, layout, terms.bindings, estimate);
  return estimate;
}

namespace {

// Of hugetlb tables: pages by the nodes they are to come from, and all of them.
std::vector<placement::PoolDemand> demands_of(const plan::Scenario& scenario, const plan::RunLayout& layout,
                                              const placement::Topology& topology) {
  const std::int64_t unit = plan::unit_bytes(scenario.storage.backing);
  // By the node that backings are bound to each; -1: where storage.policy says.
  std::map<int, std::vector<std::int64_t>> pages;
  std::map<int, placement::EffectivePolicy> policies;
  std::int64_t all = 0;
  for (const plan::BackingPlace& place : layout.backings) {
    pages[place.node].push_back(place.bytes / unit);
    policies[place.node] = placement::resolve(plan::policy_of(scenario.storage, place), topology);
    all += place.bytes / unit;
  }
  std::vector<placement::PoolDemand> demands;
  for (const auto& [node, list] : pages) {
    for (const placement::PoolDemand& one : placement::pool_demands(policies[node], list)) {
      if (!one.nodes.empty()) demands.push_back(one);
    }
  }
  demands.push_back({{}, all});
  return demands;
}

}  // namespace

void require_huge_pages_together(const std::vector<TablesOf>& all, const placement::Topology& topology) {
  std::map<plan::Backing, std::map<std::vector<int>, std::int64_t>> pages;  // by the nodes that they come from
  for (const auto& [scenario, layout] : all) {
    const plan::Backing backing = scenario->storage.backing;
    if (plan::is_thp(backing)) {
      const std::string obstacle = placement::thp_obstacle(backing);
      if (!obstacle.empty()) throw Error(Exit::skipped, obstacle);
    }
    if (!plan::is_hugetlb(backing)) continue;
    for (const placement::PoolDemand& one : demands_of(*scenario, layout, topology)) {
      pages[backing][one.nodes] += one.pages;
    }
  }
  for (const auto& [backing, by_nodes] : pages) {
    std::vector<placement::PoolDemand> demands;
    for (const auto& [nodes, count] : by_nodes) demands.push_back({nodes, count});
    std::rotate(demands.begin(), demands.begin() + 1, demands.end());  // the whole machine's last: a node says more
    const auto pools = placement::read_huge_pools(plan::unit_bytes(backing));
    const placement::PoolShortage shortage = placement::pool_shortage(backing, demands, pools);
    if (!shortage.text.empty()) throw Error(shortage.exit, shortage.text);
  }
}

void require_huge_pages(const plan::Scenario& scenario, const plan::RunLayout& layout,
                        const placement::Topology& topology) {
  require_huge_pages_together({{&scenario, layout}}, topology);
}

void require_memory(const MemoryEstimate& estimate, const placement::MemoryLimits& limits) {
  const std::vector<std::string> lines = placement::missing_memory(estimate.need, limits);
  if (lines.empty()) return;
  fail(Exit::failure,
       "not enough memory, nothing was allocated: {} ({}). Lower model.table_scale, the batch or workload.steps, or "
       "free memory",
       fmt::join(lines, "; "), estimate.text());
}

void require_memory_together(const std::vector<ArmMemory>& arms, const placement::MemoryLimits& limits) {
  placement::MemoryNeed need;
  std::set<int> nodes;
  bool all_bound = true;
  std::string each;
  for (const auto& [arm, estimate] : arms) {
    need.shared_bytes += estimate.need.shared_bytes;
    need.shm_file_bytes += estimate.need.shm_file_bytes;
    need.private_bytes += estimate.need.private_bytes;
    for (const auto& [node, bytes] : estimate.need.node_bytes) need.node_bytes[node] += bytes;
    const std::vector<int>& bound = estimate.need.bind_nodes;
    need.bind_bytes += estimate.need.bind_bytes;
    if (bound.size() == 1) need.node_bytes[bound.front()] += estimate.need.bind_bytes;
    nodes.insert(bound.begin(), bound.end());
    all_bound = all_bound && !bound.empty();
    each += fmt::format("{}arm {} {} ({})", each.empty() ? "" : ", ", arm,
                        placement::human_bytes(estimate.total_bytes()), estimate.text());
  }
  if (all_bound) need.bind_nodes.assign(nodes.begin(), nodes.end());
  const std::vector<std::string> lines = placement::missing_memory(need, limits);
  if (lines.empty()) return;
  fail(Exit::failure,
       "experiment.coresident holds the tables of all arms at once, and they do not fit, nothing was allocated: {}; {} "
       "together: {}. Set experiment.coresident false, or lower model.table_scale",
       fmt::join(lines, "; "), placement::human_bytes(need.shared_bytes + need.private_bytes), each);
}

}  // namespace eb::supervise
