// What one event costs on the CPU backend: to the host that records it, and to the stream that carries it.
#include <benchmark/benchmark.h>

#include "harness/backend/backend.h"
#include "harness/base/os.h"

namespace eb::backend {
namespace {

constexpr int kEvents = 10'000;

// The unit of both costs: each side of a record reads the clock once.
void BM_clock_read(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(now_ns());
}
BENCHMARK(BM_clock_read);

// The host runs ahead of a stream that has work, as in a step: nobody sleeps, so nobody is woken. `stream_ns` = time of
// the stream from the first event to the last, per event.
void BM_record_ahead(benchmark::State& state) {
  const auto backend = make_cpu_backend({});
  const StreamId stream = backend->create_stream("main");
  double stream_ns = 0;
  for (auto _ : state) {
    state.PauseTiming();
    backend->reset_events();
    backend->busy(stream, {OpKind::inject}, 5'000'000);
    state.ResumeTiming();
    EventId event = 0;
    for (int i = 0; i < kEvents; ++i) {
      event = backend->new_event();
      backend->record(stream, event);
    }
    state.PauseTiming();
    backend->synchronize();
    stream_ns += static_cast<double>(backend->times(event).device_ns - backend->times(0).device_ns) / (kEvents - 1);
    state.ResumeTiming();
  }
  state.counters["per_event"] =
      benchmark::Counter(kEvents, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["stream_ns"] = stream_ns / static_cast<double>(state.iterations());
}
BENCHMARK(BM_record_ahead)->Unit(benchmark::kMicrosecond);

// The stream sleeps: the record wakes it, and its completion wakes the host.
void BM_record_and_wait_asleep(benchmark::State& state) {
  const auto backend = make_cpu_backend({});
  const StreamId stream = backend->create_stream("main");
  for (auto _ : state) {
    const EventId event = backend->new_event();
    backend->record(stream, event);
    backend->host_wait(event);
    backend->reset_events();
  }
}
BENCHMARK(BM_record_and_wait_asleep)->UseRealTime();

}  // namespace
}  // namespace eb::backend

BENCHMARK_MAIN();
