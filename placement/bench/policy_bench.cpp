// What a policy adds to start-up: create, map, set the policy and pre-touch, against the same without a policy, in turns on
// fresh memory. `added_share` = the ratio of the two medians, less 1 (the project's limit: 0.05). `with_topology`: also
// reading the machine's nodes, which a leader does before the policy stage. 512 MiB, or ENGRAM_BENCH_TABLE_BYTES.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "kernels/bench/bench_support.h"
#include "placement/backing.h"
#include "placement/policy.h"
#include "placement/pretouch.h"

namespace eb::bench {
namespace {

using placement::EffectivePolicy;
using plan::PolicyKind;

std::size_t bytes_wanted = 0;

struct Seconds {
  double all = 0;
  double topology = 0;
};

double since(std::int64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-9; }

void touch(const Mapping& mapping, std::size_t offset, std::size_t bytes) {
  placement::pretouch(plan::PretouchKind::leader, 0, true, mapping.data() + offset, bytes);
}

// The way of a leader from nothing to touched pages. `place` sets policies and touches.
Seconds start_up(const std::function<void(const Mapping&, const placement::Topology&)>& place, bool with_policy) {
  Seconds out;
  placement::Topology topology;
  if (with_policy) {
    const std::int64_t start_ns = now_ns();
    topology = placement::read_topology(placement::Devices::skip);
    out.topology = since(start_ns);
  }
  const std::int64_t start_ns = now_ns();
  const UniqueFd fd = placement::create_backing(plan::Backing::shm, bytes_wanted);
  const Mapping mapping = Mapping::shared(fd.get(), bytes_wanted, "policy bench");
  place(mapping, topology);
  out.all = since(start_ns);
  return out;
}

void plain(const Mapping& mapping, const placement::Topology&) { touch(mapping, 0, mapping.size()); }

void uniform(PolicyKind kind, const Mapping& mapping, const placement::Topology& topology) {
  placement::apply({kind, {topology.nodes.front().id}}, mapping.data(), mapping.size());
  touch(mapping, 0, mapping.size());
}

// As many stretches as weighted ever has. On one node they are told apart by two policies of the same effect, or the
// kernel would join them again.
void segments(const Mapping& mapping, const placement::Topology& topology) {
  const int node = topology.nodes.front().id;
  const std::vector<placement::Segment> cut =
      placement::weighted_segments({PolicyKind::weighted, {0, 1}, {1, 1}}, mapping.size(), page_bytes());
  for (std::size_t i = 0; i < cut.size(); ++i) {
    const PolicyKind kind = i % 2 == 0 ? PolicyKind::bind : PolicyKind::interleave;
    placement::apply({kind, {node}}, mapping.data() + cut[i].offset, cut[i].bytes);
  }
  for (placement::Segment segment : cut) {
    touch(mapping, segment.offset, segment.bytes);
    segment.node = node;
    placement::check_segment(segment, mapping.data(), page_bytes());
  }
}

void measure(benchmark::State& state, const std::function<void(const Mapping&, const placement::Topology&)>& place) {
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

void add(const char* name, std::function<void(const Mapping&, const placement::Topology&)> place) {
  benchmark::RegisterBenchmark(name, [place = std::move(place)](benchmark::State& state) { measure(state, place); })
      ->UseManualTime()
      ->Iterations(15)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace eb::bench

int main(int argc, char** argv) {
  using namespace eb;
  try {
    bench::bytes_wanted = bench::table_bytes_wanted(std::size_t{512} << 20);
    if (const std::string reason = bench::memory_obstacle(bench::bytes_wanted); !reason.empty()) {
      std::fprintf(stderr, "policy_bench: skipped: %s\n", reason.c_str());
      return bench::kSkipped;
    }
    for (const auto kind : {plan::PolicyKind::bind, plan::PolicyKind::interleave}) {
      bench::add(plan::name(kind), [kind](const auto& mapping, const auto& topology) {
        bench::uniform(kind, mapping, topology);
      });
    }
    bench::add("segments", bench::segments);
    return bench::run_benchmarks(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "policy_bench: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
