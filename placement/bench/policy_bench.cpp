// What a policy adds to start-up: create, map, set the policy and pre-touch, against the same without a policy. Both
// run twice in a group of four on fresh memory, without-with-with-without and the other way round by turns, so that a
// drift within a group falls on both; `added` is the median over the groups of the ratio less 1, `low` and `high` the
// order statistics that hold it with 95 % confidence: of the process's CPU time (cpu_*), which a busy machine stretches
// less, and of wall time (wall_*). `same` has no policy on either side: what the method itself reaches.
// `of_start_up_*`: the same difference over a start-up that also registers and writes the tables, as every rank's does.
// The project's limit: 0.05. `topology_ms`: reading the machine's nodes, once a process whatever the tables' size.
// 512 MiB at most; exits 77 where these do not fit.
#include <benchmark/benchmark.h>

#include <numaif.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/stats/summary.h"
#include "harness/stats/tail.h"
#include "kernels/pretouch.h"
#include "placement/backing.h"
#include "placement/policy.h"
#include "placement/pretouch.h"

namespace eb::placement {
namespace {

using plan::PolicyKind;

// Large enough that what is done once a mapping does not show; the stretches of `segments` are as many in every table.
constexpr std::size_t kUniformBytes = std::size_t{128} << 20;
constexpr std::size_t kSegmentsBytes = std::size_t{512} << 20;
constexpr int kGroups = 120;
constexpr int kSkipped = 77;

using Place = std::function<void(const Mapping&, const Topology&)>;

// Of one start-up, in seconds. `touched`: created, mapped, the policy set, every page touched; `rest`: registered and
// written; `topology`: the machine read.
struct Cost {
  double touched = 0;
  double rest = 0;
  double topology = 0;
};
struct Costs {
  Cost wall;
  Cost cpu;

  Costs& operator+=(const Costs& other) {
    for (const auto clock : {&Costs::wall, &Costs::cpu}) {
      for (const auto part : {&Cost::touched, &Cost::rest, &Cost::topology}) {
        this->*clock.*part += other.*clock.*part;
      }
    }
    return *this;
  }
};

double cpu_seconds() {  // user and system time of all threads
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Stopwatch {
 public:
  void lap(Costs& costs, double Cost::*part) {
    const std::int64_t wall_ns = now_ns();
    const double cpu = cpu_seconds();
    costs.wall.*part += static_cast<double>(wall_ns - wall_ns_) * 1e-9;
    costs.cpu.*part += cpu - cpu_;
    wall_ns_ = wall_ns;
    cpu_ = cpu;
  }

 private:
  std::int64_t wall_ns_ = now_ns();
  double cpu_ = cpu_seconds();
};

void touch(const Mapping& mapping, std::size_t offset, std::size_t bytes) {
  pretouch(plan::PretouchKind::leader, 0, true, mapping.data() + offset, bytes);
}

// The way of a leader from nothing to written tables. `place` sets policies and touches.
Costs start_up(const Place& place, std::size_t bytes, bool with_policy) {
  Costs costs;
  Stopwatch watch;
  Topology topology;
  if (with_policy) topology = read_topology(Devices::skip);
  watch.lap(costs, &Cost::topology);
  const UniqueFd fd = create_backing(plan::Backing::shm, bytes);
  const Mapping mapping = Mapping::shared(fd.get(), bytes, "policy bench");
  place(mapping, topology);
  watch.lap(costs, &Cost::touched);
  kernels::pretouch(mapping.data(), mapping.size(), 1, 0);  // what registering does on the CPU
  std::memset(mapping.data(), 0x5A, mapping.size());
  watch.lap(costs, &Cost::rest);
  return costs;
}

void plain(const Mapping& mapping, const Topology&) { touch(mapping, 0, mapping.size()); }

void uniform(PolicyKind kind, const Mapping& mapping, const Topology& topology) {
  apply({kind, {topology.nodes.front().id}}, mapping.data(), mapping.size());
  touch(mapping, 0, mapping.size());
}

// As apply() of a bind: mbind, and the policy read back at both ends. The flag has no effect on one node, and tells a
// bind with it from a bind without.
void apply_static_bind(int node, std::byte* address, std::size_t bytes) {
  const unsigned long mask = 1UL << node;
  constexpr int kStaticNodes = 1 << 15;  // MPOL_F_STATIC_NODES, which libnuma's header lacks
  constexpr int kMode = MPOL_BIND | kStaticNodes;
  if (::mbind(address, bytes, kMode, &mask, 8 * sizeof(mask) + 1, MPOL_MF_STRICT) != 0) {
    fail_errno(errno, "mbind with MPOL_F_STATIC_NODES");
  }
  for (std::byte* at : {address, address + bytes - page_bytes()}) {
    int mode = 0;
    unsigned long found[16] = {};
    if (::get_mempolicy(&mode, found, 8 * sizeof(found), at, MPOL_F_ADDR) != 0) fail_errno(errno, "get_mempolicy");
    if (mode != kMode || found[0] != mask) fail(Exit::failure, "mbind with MPOL_F_STATIC_NODES left another policy");
  }
}

// As many stretches as weighted has in such a table, each bound to a node. On one node every other one is told apart by
// a flag, or the kernel would join them again.
void segments(const Mapping& mapping, const Topology& topology) {
  const int node = topology.nodes.front().id;
  const std::vector<Segment> cut =
      weighted_segments({PolicyKind::weighted, {0, 1}, {1, 1}}, mapping.size(), page_bytes());
  for (std::size_t i = 0; i < cut.size(); ++i) {
    std::byte* const address = mapping.data() + cut[i].offset;
    if (i % 2 == 0) {
      apply({PolicyKind::bind, {node}}, address, cut[i].bytes);
    } else {
      apply_static_bind(node, address, cut[i].bytes);
    }
  }
  for (Segment segment : cut) {
    touch(mapping, segment.offset, segment.bytes);
    segment.node = node;
    check_segment(segment, mapping.data(), page_bytes());
  }
}

void report(benchmark::State& state, const std::string& name, std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  const auto interval = stats::quantile_interval(ratios, 0.5);
  if (!interval) fail(Exit::failure, "{} groups are too few for an interval", ratios.size());
  state.counters[name] = interval->value - 1;
  state.counters[name + "_low"] = interval->low - 1;
  state.counters[name + "_high"] = interval->high - 1;
}

void measure(benchmark::State& state, const Place& place, std::size_t bytes, bool with_policy) {
  std::map<std::string, std::vector<double>> ratios;
  const auto add_ratios = [&](const std::string& clock, const Cost& alone, const Cost& with) {
    ratios[clock + "_added"].push_back(with.touched / alone.touched);
    // The rest is the same work on both sides: one of the two stands for it, so that its noise does not come in.
    ratios["of_start_up_" + clock].push_back(1 + (with.touched - alone.touched) / (alone.touched + alone.rest));
  };
  std::vector<double> alone_ms;
  std::vector<double> topology_ms;
  bool outer = false;  // whether the policy has the group's first and last place
  for ([[maybe_unused]] auto _ : state) {
    Costs with;
    Costs alone;
    for (const bool turn : {outer, !outer, !outer, outer}) {
      (turn ? with : alone) += start_up(turn ? place : plain, bytes, turn && with_policy);
    }
    add_ratios("cpu", alone.cpu, with.cpu);
    add_ratios("wall", alone.wall, with.wall);
    alone_ms.push_back(alone.cpu.touched / 2 * 1e3);
    topology_ms.push_back(with.wall.topology / 2 * 1e3);
    outer = !outer;
    state.SetIterationTime(with.wall.touched / 2);
  }
  for (const auto& [name, values] : ratios) report(state, name, values);
  state.counters["pretouch_cpu_ms"] = stats::median(alone_ms);
  if (with_policy) state.counters["topology_ms"] = stats::median(topology_ms);
}

void add(const char* name, const Place& place, std::size_t bytes, bool with_policy = true) {
  benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { measure(state, place, bytes, with_policy); })
      ->UseManualTime()
      ->Iterations(kGroups)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace eb::placement

int main(int argc, char** argv) {
  using namespace eb::placement;
  try {
    MemoryNeed need;
    need.shared_bytes = need.shm_file_bytes = static_cast<std::int64_t>(kSegmentsBytes);
    if (const auto missing = missing_memory(need, read_memory_limits()); !missing.empty()) {
      std::fprintf(stderr, "policy_bench: skipped: %s\n", missing.front().c_str());
      return kSkipped;
    }
    add("same", plain, kUniformBytes, false);
    for (const auto kind : {eb::plan::PolicyKind::bind, eb::plan::PolicyKind::interleave}) {
      add(
          eb::plan::name(kind), [kind](const auto& mapping, const auto& topology) { uniform(kind, mapping, topology); },
          kUniformBytes);
    }
    add("segments", segments, kSegmentsBytes);
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const eb::Error& error) {
    std::fprintf(stderr, "policy_bench: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
