// Collectives of the CPU backend between two ranks, each with its own backend and stream, over one arena. Bytes per
// second count what one rank receives from the other.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <thread>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"

namespace eb::backend {
namespace {

constexpr int kCalls = 100;  // of each rank

enum class Shape { gather, exchange };

void make_calls(const Arena& arena, const std::vector<GroupSpec>& groups, int rank, Shape shape, std::size_t bytes,
                benchmark::State* state) {
  CpuOptions options;
  options.arena = arena;
  options.groups = groups;
  options.rank = rank;
  const auto backend = make_cpu_backend(options);
  const StreamId stream = backend->create_stream("main");
  GroupSpec own = groups[0];
  own.index = rank;
  const auto group = backend->communicator(own);
  const auto send = backend->allocate(2 * bytes, MemoryKind::device, "send");
  const auto recv = backend->allocate(2 * bytes, MemoryKind::device, "recv");
  const auto call = [&] {
    if (shape == Shape::gather) {
      group->all_gather(stream, {OpKind::gather}, send->data(), recv->data(), bytes);
    } else {
      group->all_to_all(stream, {OpKind::expert_exchange}, send->data(), recv->data(), bytes);
    }
    backend->synchronize();
  };
  call();  // first touch of the arena
  if (state == nullptr) {
    for (int i = 0; i < kCalls; ++i) call();
  } else {
    for (auto _ : *state) call();
  }
}

void run(benchmark::State& state, Shape shape) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::vector<GroupSpec> groups{{"tp", {0, 1}, 0}};
  const UniqueFd fd = make_memfd("bench-arena", arena_bytes(groups));
  const Mapping mapping = Mapping::shared(fd.get(), arena_bytes(groups), "bench arena");
  const Arena arena{mapping.data(), mapping.size()};
  std::thread peer([&] { make_calls(arena, groups, 1, shape, bytes, nullptr); });
  make_calls(arena, groups, 0, shape, bytes, &state);
  peer.join();
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * state.range(0));
}

void BM_all_gather(benchmark::State& state) { run(state, Shape::gather); }
void BM_all_to_all(benchmark::State& state) { run(state, Shape::exchange); }
BENCHMARK(BM_all_gather)->Arg(64)->Arg(64 << 10)->Arg(1 << 20)->Arg(16 << 20)->Iterations(kCalls)->UseRealTime();
BENCHMARK(BM_all_to_all)->Arg(64)->Arg(64 << 10)->Arg(1 << 20)->Arg(16 << 20)->Iterations(kCalls)->UseRealTime();

}  // namespace
}  // namespace eb::backend

BENCHMARK_MAIN();
