// Select: what the pipeline does with it, at 512 tokens: heads of TP ranks side by side, a window of whole rows, wkv's
// output columns. Beside the same bytes in one memcpy.
#include <benchmark/benchmark.h>

#include <cstring>

#include "kernels/bench/bench_support.h"
#include "kernels/select.h"

namespace eb::bench {
namespace {

constexpr std::int64_t kTokens = 512;

void select(benchmark::State& state) {
  const auto sources = static_cast<int>(state.range(0));
  const std::int64_t piece_bytes = state.range(1);
  std::vector<std::byte> src(static_cast<std::size_t>(sources * kTokens * piece_bytes), std::byte{1});
  std::vector<std::byte> dst(src.size());
  kernels::SelectArgs args;
  args.src = src.data();
  args.dst = dst.data();
  args.sources = sources;
  args.source_stride = kTokens * piece_bytes;
  args.token_stride = piece_bytes;
  args.piece_bytes = piece_bytes;
  args.valid_tokens = kTokens;
  args.tokens = kTokens;
  args.dst_row_bytes = sources * piece_bytes;
  for (auto _ : state) {
    kernels::select_rows(args);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(src.size()));
}
BENCHMARK(select)
    ->ArgNames({"sources", "piece_bytes"})
    ->Args({2, 12 * 512})   // heads of two TP ranks
    ->Args({4, 6 * 512})    // of four
    ->Args({1, 24 * 512})   // a token window
    ->Args({2, 12800 * 2})  // wkv columns
    ->Unit(benchmark::kMicrosecond);

void plain_copy(benchmark::State& state) {
  std::vector<std::byte> src(static_cast<std::size_t>(kTokens * 24 * 512), std::byte{1});
  std::vector<std::byte> dst(src.size());
  for (auto _ : state) {
    std::memcpy(dst.data(), src.data(), src.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(src.size()));
}
BENCHMARK(plain_copy)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace eb::bench

int main(int argc, char** argv) { return eb::bench::run_benchmarks(argc, argv); }
