// What a policy adds to start-up: create, map, set the policy and pre-touch, against the same without a policy, in
// turns on fresh memory. `added_share` = the ratio of the two medians, less 1 (the project's limit: 0.05).
// `with_topology`: also reading the machine's nodes, which a leader does before the policy stage. 512 MiB;
// exits 77 where these do not fit.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/backing.h"
#include "placement/policy.h"
#include "placement/pretouch.h"

namespace eb::placement {
namespace {

using plan::PolicyKind;

constexpr std::size_t kBytes = std::size_t{512} << 20;
constexpr int kSkipped = 77;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Seconds {
  double all = 0;
  double topology = 0;
};

double since(std::int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-9; }

void touch(const Mapping& mapping, std::size_t offset, std::size_t bytes) {
  pretouch(plan::PretouchKind::leader, 0, true, mapping.data() + offset, bytes);
}

// The way of a leader from nothing to touched pages. `place` sets policies and touches.
Seconds start_up(const std::function<void(const Mapping&, const Topology&)>& place, bool with_policy) {
  Seconds out;
  Topology topology;
  if (with_policy) {
    const std::int64_t start_ns = now_ns();
    topology = read_topology(Devices::skip);
    out.topology = since(start_ns);
  }
  const std::int64_t start_ns = now_ns();
  const UniqueFd fd = create_backing(plan::Backing::shm, kBytes);
  const Mapping mapping = Mapping::shared(fd.get(), kBytes, "policy bench");
  place(mapping, topology);
  out.all = since(start_ns);
  return out;
}

void plain(const Mapping& mapping, const Topology&) { touch(mapping, 0, mapping.size()); }

void uniform(PolicyKind kind, const Mapping& mapping, const Topology& topology) {
  apply({kind, {topology.nodes.front().id}}, mapping.data(), mapping.size());
  touch(mapping, 0, mapping.size());
}

// As many stretches as weighted ever has. On one node they are told apart by two policies of the same effect, or the
// kernel would join them again.
void segments(const Mapping& mapping, const Topology& topology) {
  const int node = topology.nodes.front().id;
  const std::vector<Segment> cut =
      weighted_segments({PolicyKind::weighted, {0, 1}, {1, 1}}, mapping.size(), page_bytes());
  for (std::size_t i = 0; i < cut.size(); ++i) {
    const PolicyKind kind = i % 2 == 0 ? PolicyKind::bind : PolicyKind::interleave;
    apply({kind, {node}}, mapping.data() + cut[i].offset, cut[i].bytes);
  }
  for (Segment segment : cut) {
    touch(mapping, segment.offset, segment.bytes);
    segment.node = node;
    check_segment(segment, mapping.data(), page_bytes());
  }
}

void measure(benchmark::State& state, const std::function<void(const Mapping&, const Topology&)>& place) {
  std::vector<double> alone;
  std::vector<double> with;
  std::vector<double> with_topology;
  bool policy_first = false;
  for ([[maybe_unused]] auto _ : state) {
    // Each side goes first every other time.
    for (const bool policy : {policy_first, !policy_first}) {
      const Seconds seconds = policy ? start_up(place, true) : start_up(plain, false);
      (policy ? with : alone).push_back(seconds.all);
      if (policy) with_topology.push_back(seconds.all + seconds.topology);
    }
    policy_first = !policy_first;
    state.SetIterationTime(with.back());
  }
  state.counters["pretouch_ms"] = median(alone) * 1e3;
  state.counters["policy_and_pretouch_ms"] = median(with) * 1e3;
  state.counters["added_share"] = median(with) / median(alone) - 1;
  state.counters["with_topology"] = median(with_topology) / median(alone) - 1;
}

void add(const char* name, std::function<void(const Mapping&, const Topology&)> place) {
  benchmark::RegisterBenchmark(name, [place = std::move(place)](benchmark::State& state) { measure(state, place); })
      ->UseManualTime()
      ->Iterations(15)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace eb::placement

int main(int argc, char** argv) {
  using namespace eb::placement;
  try {
    MemoryNeed need;
    need.shared_bytes = need.shm_file_bytes = static_cast<std::int64_t>(kBytes);
    if (const auto missing = missing_memory(need, read_memory_limits()); !missing.empty()) {
      std::fprintf(stderr, "policy_bench: skipped: %s\n", missing.front().c_str());
      return kSkipped;
    }
    for (const auto kind : {eb::plan::PolicyKind::bind, eb::plan::PolicyKind::interleave}) {
      add(eb::plan::name(kind),
          [kind](const auto& mapping, const auto& topology) { uniform(kind, mapping, topology); });
    }
    add("segments", segments);
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const eb::Error& error) {
    std::fprintf(stderr, "policy_bench: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
