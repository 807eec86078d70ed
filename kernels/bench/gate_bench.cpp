// Gate: tokens of deepseek-v4.1-flash (hidden 5120, four copies), each instruction set.
#include <benchmark/benchmark.h>

#include "kernels/bench/bench_support.h"
#include "kernels/cpu_variant.h"
#include "kernels/gate.h"

namespace eb::bench {
namespace {

constexpr std::int64_t kTokens = 64;
constexpr std::int32_t kCopies = 4;
constexpr std::int32_t kDim = 5120;

std::vector<Bf16> values(std::size_t count, std::uint64_t seed) {
  const std::vector<std::int32_t> draws = random_ids(count, 2001, seed);
  std::vector<Bf16> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = to_bf16(static_cast<float>(draws[i] - 1000) * 1e-3F);
  return result;
}

void gate(benchmark::State& state) {
  const auto variant = static_cast<kernels::CpuVariant>(state.range(0));
  std::vector<Bf16> hidden = values(kTokens * kCopies * kDim, 1);
  const std::vector<Bf16> kv = values(kTokens * (kCopies + 1) * kDim, 2);
  const std::vector<Bf16> q = values(kCopies * kDim, 3);
  const std::vector<Bf16> k = values(kCopies * kDim, 4);
  kernels::GateArgs args;
  args.hidden = hidden.data();
  args.kv = kv.data();
  args.q = q.data();
  args.k = k.data();
  args.tokens = kTokens;
  args.copies = kCopies;
  args.dim = kDim;
  for (auto _ : state) {
    kernels::gate_tokens(args, 0, kTokens, variant);
    benchmark::ClobberMemory();
  }
  state.SetLabel(kernels::name(variant));
  state.counters["tokens_per_s"] =
      benchmark::Counter(static_cast<double>(kTokens), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace
}  // namespace eb::bench

int main(int argc, char** argv) {
  auto* bench = benchmark::RegisterBenchmark("gate", eb::bench::gate)->Unit(benchmark::kMicrosecond);
  for (const auto variant : eb::kernels::supported_variants()) bench->Arg(static_cast<std::int64_t>(variant));
  return eb::bench::run_benchmarks(argc, argv);
}
