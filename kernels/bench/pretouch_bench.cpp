// Pre-touch of a fresh shared mapping: one thread and several, measured in turns; `efficiency` = rate of T threads over
// T x the rate of one (1 = scales perfectly; memory bandwidth is the ceiling). 512 MiB, or ENGRAM_BENCH_TABLE_BYTES.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <thread>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "kernels/bench/bench_support.h"
#include "kernels/pretouch.h"

namespace eb::bench {
namespace {

std::size_t bytes_wanted = 0;

double pretouch_seconds(int threads, kernels::TouchMethod method) {
  const UniqueFd fd = make_memfd("pretouch-bench", bytes_wanted);
  const Mapping mapping = Mapping::shared(fd.get(), bytes_wanted, "pre-touch bench");
  const std::int64_t start_ns = now_ns();
  kernels::pretouch(mapping.data(), mapping.size(), threads, method);
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

void pretouch(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  const auto method = static_cast<kernels::TouchMethod>(state.range(1));
  std::vector<double> one;
  std::vector<double> all;
  for (auto _ : state) {
    one.push_back(pretouch_seconds(1, method));
    all.push_back(pretouch_seconds(threads, method));
    state.SetIterationTime(all.back());
  }
  state.SetLabel(method == kernels::TouchMethod::populate_write ? "MADV_POPULATE_WRITE" : "rewriting loop");
  const auto bytes = static_cast<double>(bytes_wanted);
  state.counters["one_thread_bytes_per_s"] = bytes / median(one);
  state.counters["bytes_per_s"] = bytes / median(all);
  state.counters["efficiency"] = median(one) / median(all) / threads;
}

}  // namespace
}  // namespace eb::bench

int main(int argc, char** argv) {
  using namespace eb;
  try {
    bench::bytes_wanted = bench::table_bytes_wanted(std::size_t{512} << 20);
    if (const std::string reason = bench::memory_obstacle(bench::bytes_wanted); !reason.empty()) {
      std::fprintf(stderr, "pretouch_bench: skipped: %s\n", reason.c_str());
      return bench::kSkipped;
    }
    auto* bench = benchmark::RegisterBenchmark("pretouch", bench::pretouch)
                      ->ArgNames({"threads", "method"})
                      ->UseManualTime()
                      ->Iterations(7)
                      ->Unit(benchmark::kMillisecond);
    const auto threads = static_cast<int>(std::max(2U, std::thread::hardware_concurrency()));
    for (const auto method : {kernels::TouchMethod::populate_write, kernels::TouchMethod::rewrite}) {
      if (method == kernels::TouchMethod::populate_write && !kernels::has_populate_write()) continue;
      for (int t = 2; t <= threads; t *= 2) bench->Args({t, static_cast<std::int64_t>(method)});
    }
    return bench::run_benchmarks(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "pretouch_bench: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
