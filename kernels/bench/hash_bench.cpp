// Hash: tokens to row ids with the geometry of deepseek-v4.1-flash, each instruction set beside plain `%`.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "harness/engram/geometry.h"
#include "kernels/bench/bench_support.h"
#include "kernels/cpu_variant.h"
#include "kernels/hash.h"

namespace eb::bench {
namespace {

constexpr std::int64_t kTokens = 4096;

struct Batch {
  std::vector<kernels::HashLayer> layers;
  std::vector<std::int32_t> context;
  std::vector<std::int32_t> position;
  std::vector<std::int32_t> ids;
  kernels::HashArgs args;

  Batch() {
    const engram::Geometry geometry = engram::make_geometry(engram::preset("deepseek-v4.1-flash"), 1.0);
    for (const engram::LayerGeometry& from : geometry.layers) {
      kernels::HashLayer& layer = layers.emplace_back();
      std::copy(from.multipliers.begin(), from.multipliers.end(), layer.multipliers);
      std::copy(from.head_rows.begin(), from.head_rows.end(), layer.primes);
      std::copy(from.head_offsets.begin(), from.head_offsets.end(), layer.offsets);
    }
    context = random_ids(kTokens + kernels::kLookBack, geometry.model.compressed_vocab, 1);
    for (std::int32_t t = 0; t < kTokens; ++t) position.push_back(t + kernels::kLookBack);
    args.context = context.data();
    args.position = position.data();
    args.tokens = kTokens;
    args.layers = layers.data();
    args.layer_count = static_cast<int>(layers.size());
    args.columns = geometry.columns;
    for (int c = 0; c < args.columns; ++c) {
      args.column_ngram[c] = geometry.model.ngram_sizes[static_cast<std::size_t>(c / geometry.model.heads_per_ngram)];
    }
    ids.resize(static_cast<std::size_t>(kTokens) * layers.size() * static_cast<std::size_t>(geometry.columns));
    args.ids = ids.data();
  }
};

void count(benchmark::State& state) {
  state.counters["tokens_per_s"] =
      benchmark::Counter(static_cast<double>(kTokens), benchmark::Counter::kIsIterationInvariantRate);
}

void hash(benchmark::State& state) {
  const auto variant = static_cast<kernels::CpuVariant>(state.range(0));
  const Batch batch;
  for (auto _ : state) {
    kernels::hash_tokens(batch.args, 0, kTokens, variant);
    benchmark::ClobberMemory();
  }
  state.SetLabel(kernels::name(variant));
  count(state);
}

void plain_modulo(benchmark::State& state) {
  const Batch batch;
  const kernels::HashArgs& args = batch.args;
  for (auto _ : state) {
    std::int32_t* id = args.ids;
    for (std::int64_t token = 0; token < kTokens; ++token) {
      for (int l = 0; l < args.layer_count; ++l) {
        std::int64_t rolling = 0;
        int shift = 0;
        for (int c = 0; c < args.columns; ++c) {
          for (; shift < args.column_ngram[c]; ++shift) {
            rolling ^= args.context[args.position[token] - shift] * args.layers[l].multipliers[shift];
          }
          *id++ = static_cast<std::int32_t>(rolling % args.layers[l].primes[c] + args.layers[l].offsets[c]);
        }
      }
    }
    benchmark::ClobberMemory();
  }
  count(state);
}
BENCHMARK(plain_modulo)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace eb::bench

int main(int argc, char** argv) {
  auto* bench = benchmark::RegisterBenchmark("hash", eb::bench::hash)->Unit(benchmark::kMicrosecond);
  for (const auto variant : eb::kernels::supported_variants()) bench->Arg(static_cast<std::int64_t>(variant));
  return eb::bench::run_benchmarks(argc, argv);
}
