// Speed of the collectors: parsers in bytes/s of text as the kernel writes it, move_pages in pages/s.
#include <benchmark/benchmark.h>

#include <string>

#include "collectors/page_map.h"
#include "collectors/process_maps.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"
#include "placement/backing.h"

namespace eb::collectors {
namespace {

// This process's own file, repeated to about 8 MiB: a large CUDA process has tens of thousands of lines.
std::string repeated(const std::string& path) {
  const std::string once = read_file(path);
  std::string text;
  while (text.size() < (8U << 20U)) text += once;
  return text;
}

void parse_numa(benchmark::State& state) {
  const std::string text = repeated("/proc/self/numa_maps");
  for ([[maybe_unused]] auto _ : state) {
    std::int64_t skipped = 0;
    benchmark::DoNotOptimize(parse_numa_maps(text, &skipped));
    if (skipped != 0) state.SkipWithError("lines of this kernel were not understood");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size()) * static_cast<std::int64_t>(state.iterations()));
}
BENCHMARK(parse_numa)->Unit(benchmark::kMillisecond);

void parse_smaps_text(benchmark::State& state) {
  const std::string text = repeated("/proc/self/smaps");
  for ([[maybe_unused]] auto _ : state) {
    std::int64_t skipped = 0;
    benchmark::DoNotOptimize(parse_smaps(text, &skipped));
    if (skipped != 0) state.SkipWithError("lines of this kernel were not understood");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(text.size()) * static_cast<std::int64_t>(state.iterations()));
}
BENCHMARK(parse_smaps_text)->Unit(benchmark::kMillisecond);

// range(0): MiB of touched shared memory; every page is asked.
void ask_pages(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) << 20U;
  if (!placement::missing_memory(
           {.shared_bytes = state.range(0) << 20, .shm_file_bytes = 0, .private_bytes = 0, .bind_nodes = {}},
           placement::read_memory_limits())
           .empty()) {
    state.SkipWithError("not enough memory");
    return;
  }
  const UniqueFd fd = placement::create_backing(plan::Backing::memfd, bytes);
  const Mapping mapping = Mapping::shared(fd.get(), bytes, "bench");
  for (std::size_t at = 0; at < bytes; at += 4096) mapping.data()[at] = std::byte{1};
  std::int64_t pages = 0;
  for ([[maybe_unused]] auto _ : state) pages += page_nodes(mapping.data(), bytes, 0).queried;
  state.SetItemsProcessed(pages);
}
BENCHMARK(ask_pages)->Arg(256)->Arg(4096)->Unit(benchmark::kMillisecond)->MinTime(0.1);

}  // namespace
}  // namespace eb::collectors

BENCHMARK_MAIN();
