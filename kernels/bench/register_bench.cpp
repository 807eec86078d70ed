// Registration on the CPU backend: every rank faults every page of the shared table for writing, all at once, each in a
// process of its own. `pages:0` finds nothing allocated (stock order: registration allocates), `pages:1` finds the
// pages there (after a pre-touch: only page tables are filled). 256 MiB, or ENGRAM_BENCH_TABLE_BYTES.
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <new>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "kernels/bench/bench_support.h"
#include "kernels/pretouch.h"

namespace eb::bench {
namespace {

std::size_t bytes_wanted = 0;

struct Gate {  // shared by the processes
  std::atomic<int> ready{0};
  std::atomic<bool> open{false};
};

// Seconds from the start signal until the last process has registered.
double register_seconds(int processes, bool pages_present) {
  const UniqueFd fd = make_memfd("register-bench", bytes_wanted);
  if (pages_present) {
    const Mapping leader = Mapping::shared(fd.get(), bytes_wanted, "register bench");
    kernels::pretouch(leader.data(), leader.size(), 1);
  }
  const UniqueFd gate_fd = make_memfd("register-bench-gate", page_bytes());
  const Mapping gate_memory = Mapping::shared(gate_fd.get(), page_bytes(), "register bench gate");
  auto* gate = new (gate_memory.data()) Gate;
  std::vector<pid_t> children;
  for (int p = 0; p < processes; ++p) {
    const pid_t child = ::fork();
    if (child < 0) fail_errno(errno, "fork");
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    try {
      const Mapping mapping = Mapping::shared(fd.get(), bytes_wanted, "register bench");
      ++gate->ready;
      while (!gate->open) ::usleep(100);
      kernels::pretouch(mapping.data(), mapping.size(), 1);
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "register_bench: %s\n", error.what());
      ++gate->ready;
      ::_exit(1);
    }
  }
  while (gate->ready < processes) ::usleep(100);
  const std::int64_t start_ns = now_ns();
  gate->open = true;
  bool failed = false;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failed = failed || status != 0;
  }
  const double seconds = static_cast<double>(now_ns() - start_ns) * 1e-9;
  if (failed) fail(Exit::failure, "a registering process failed");
  return seconds;
}

void register_table(benchmark::State& state) {
  const auto processes = static_cast<int>(state.range(0));
  std::vector<double> times;
  for (auto _ : state) {
    times.push_back(register_seconds(processes, state.range(1) != 0));
    state.SetIterationTime(times.back());
  }
  state.counters["table_bytes_per_s"] = static_cast<double>(bytes_wanted) / median(times);
}

}  // namespace
}  // namespace eb::bench

int main(int argc, char** argv) {
  using namespace eb;
  try {
    bench::bytes_wanted = bench::table_bytes_wanted(std::size_t{256} << 20);
    if (const std::string reason = bench::memory_obstacle(bench::bytes_wanted); !reason.empty()) {
      std::fprintf(stderr, "register_bench: skipped: %s\n", reason.c_str());
      return bench::kSkipped;
    }
    benchmark::RegisterBenchmark("register", bench::register_table)
        ->ArgNames({"processes", "pages"})
        ->ArgsProduct({{1, 2, 4}, {0, 1}})
        ->UseManualTime()
        ->Iterations(5)
        ->Unit(benchmark::kMillisecond);
    return bench::run_benchmarks(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "register_bench: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
