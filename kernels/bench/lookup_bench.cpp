// Lookup + dequantisation on the CPU over random rows of a table that no cache holds, beside what the same memory gives
// a plain copy of the same bytes.
//
// The two figures that matter are ratios, so everything they compare is measured in turns, window by window, within
// one benchmark, and medians are taken over the rounds: on a machine that others load, both sides see the same load.
//   lookup_against_copy   one thread: rows/s of the product's lookup over rows/s of the copy with its best prefetch
//                         distance out of 1..32 (swept in the same rounds)
//   scaling/threads:T     T threads: how much faster than one thread, lookup over copy
// Table: 4 GiB, or ENGRAM_BENCH_TABLE_BYTES. A window is a step of 512 tokens x 24 heads; ids are fresh in each window.
#include <benchmark/benchmark.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "kernels/bench/bench_support.h"
#include "kernels/cpu_variant.h"
#include "kernels/lookup.h"

namespace eb::bench {
namespace {

using kernels::CpuVariant;
using kernels::LookupArgs;
using kernels::TableView;

constexpr std::int64_t kTokens = 512;
constexpr std::int32_t kHeads = 24;
constexpr std::int64_t kRows = kTokens * kHeads;
constexpr std::size_t kWindows = 128;  // id windows: together they span far more rows than a cache holds
constexpr int kMaxDistance = 32;
constexpr std::size_t kWeightBytes = 256;
constexpr std::size_t kScaleBytes = 8;
constexpr std::size_t kRowBytes = kWeightBytes + kScaleBytes;

enum class TableLayout : std::int64_t { split, interleaved };
enum class Order : std::int64_t { token, table };

struct Setup {
  Mapping memory;
  std::vector<std::int32_t> ids;

  explicit Setup(std::size_t bytes)
      : memory(make_table_memory(bytes)), ids(random_ids(kWindows * kRows, interleaved_table(memory).rows, 1)) {}
  [[nodiscard]] const std::int32_t* window(std::size_t index) const { return ids.data() + index % kWindows * kRows; }
  [[nodiscard]] TableView table(TableLayout layout) const {
    return layout == TableLayout::split ? split_table(memory) : interleaved_table(memory);
  }
};

std::optional<Setup> setup;  // made by main

LookupArgs lookup_args(TableLayout layout, std::size_t window, Bf16* staging) {
  LookupArgs args;
  args.table = setup->table(layout);
  args.ids = setup->window(window);
  args.id_token_stride = kHeads;
  args.tokens = kTokens;
  args.columns = kHeads;
  args.heads = kHeads;
  args.staging = staging;
  return args;
}

// The yardstick: rows [first, last) of the list, weights and scales copied side by side, prefetched `distance` rows
// ahead.
void copy_rows(const TableView& table, const std::int32_t* ids, std::int64_t first, std::int64_t last, int distance,
               std::byte* out) {
  for (std::int64_t i = first; i < last; ++i) {
    if (i + distance < last) {
      const std::int64_t ahead = ids[i + distance];
      for (std::size_t line = 0; line < kWeightBytes; line += 64) {
        __builtin_prefetch(table.weights + ahead * table.weight_stride + line);
      }
      __builtin_prefetch(table.scales + ahead * table.scale_stride);
    }
    const std::int64_t row = ids[i];
    std::byte* to = out + static_cast<std::size_t>(i) * kRowBytes;
    std::memcpy(to, table.weights + row * table.weight_stride, kWeightBytes);
    std::memcpy(to + kWeightBytes, table.scales + row * table.scale_stride, kScaleBytes);
  }
  benchmark::ClobberMemory();
}

double seconds(const std::function<void()>& work) {
  const std::int64_t start_ns = now_ns();
  work();
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

// Rows/s of each layout, order and instruction set.
void lookup(benchmark::State& state) {
  const auto layout = static_cast<TableLayout>(state.range(0));
  const auto order_kind = static_cast<Order>(state.range(1));
  const auto variant = static_cast<CpuVariant>(state.range(2));
  std::vector<Bf16> staging(static_cast<std::size_t>(kRows) * kWeightBytes);
  std::vector<std::int32_t> order(kRows);
  std::size_t window = 0;
  for (auto _ : state) {
    LookupArgs args = lookup_args(layout, window++, staging.data());
    if (order_kind == Order::table) {
      state.PauseTiming();  // the sort is a kernel of its own: `sort_rows` below
      kernels::sort_rows(args, order.data());
      args.order = order.data();
      state.ResumeTiming();
    }
    kernels::lookup_program(args, 0, 1, variant);
    benchmark::ClobberMemory();
  }
  state.SetLabel(std::string(layout == TableLayout::split ? "split" : "interleaved") +
                 (order_kind == Order::token ? ", token order, " : ", table order, ") + kernels::name(variant));
  state.counters["rows_per_s"] =
      benchmark::Counter(static_cast<double>(kRows), benchmark::Counter::kIsIterationInvariantRate);
}

void sort_rows(benchmark::State& state) {
  std::vector<std::int32_t> order(kRows);
  std::size_t window = 0;
  for (auto _ : state) {
    kernels::sort_rows(lookup_args(TableLayout::split, window++, nullptr), order.data());
    benchmark::ClobberMemory();
  }
  state.counters["rows_per_s"] =
      benchmark::Counter(static_cast<double>(kRows), benchmark::Counter::kIsIterationInvariantRate);
}

// One iteration = one round: a window of the copy at every distance, and windows of the lookup between them.
void lookup_against_copy(benchmark::State& state) {
  const auto layout = static_cast<TableLayout>(state.range(0));
  const TableView table = setup->table(layout);
  std::vector<Bf16> staging(static_cast<std::size_t>(kRows) * kWeightBytes);
  std::vector<std::byte> copied(static_cast<std::size_t>(kRows) * kRowBytes);
  std::array<std::vector<double>, kMaxDistance + 1> copy_s;
  std::vector<double> lookup_s;
  std::size_t window = 0;
  for (auto _ : state) {
    for (int distance = 1; distance <= kMaxDistance; ++distance) {
      copy_s[static_cast<std::size_t>(distance)].push_back(
          seconds([&] { copy_rows(table, setup->window(window++), 0, kRows, distance, copied.data()); }));
      if (distance % 4 != 0) continue;
      const LookupArgs args = lookup_args(layout, window++, staging.data());
      lookup_s.push_back(seconds([&] { kernels::lookup_program(args, 0, 1); }));
    }
  }
  int best = 1;
  double best_s = median(copy_s[1]);
  for (int distance = 2; distance <= kMaxDistance; ++distance) {
    const double s = median(copy_s[static_cast<std::size_t>(distance)]);
    if (s < best_s) {
      best = distance;
      best_s = s;
    }
  }
  const double lookup_median_s = median(lookup_s);
  state.SetLabel(layout == TableLayout::split ? "split" : "interleaved");
  state.counters["copy_rows_per_s"] = static_cast<double>(kRows) / best_s;
  state.counters["copy_distance"] = best;
  state.counters["lookup_rows_per_s"] = static_cast<double>(kRows) / lookup_median_s;
  state.counters["ratio"] = best_s / lookup_median_s;
}

// Threads that start together, so that a window's time is that of its slowest thread.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {
    for (int t = 1; t < threads; ++t) {
      workers_.emplace_back([this, t] {
        for (std::uint64_t round = 1;; ++round) {
          while (round_.load(std::memory_order_acquire) < round) std::this_thread::yield();
          if (stop_) return;
          work_(t);
          left_.fetch_sub(1, std::memory_order_release);
        }
      });
    }
  }
  ~Team() {
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  double run(std::function<void(int)> work) {
    work_ = std::move(work);
    left_.store(threads_ - 1, std::memory_order_relaxed);
    return seconds([this] {
      round_.fetch_add(1, std::memory_order_release);
      work_(0);
      while (left_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
    });
  }

 private:
  int threads_;
  std::function<void(int)> work_;
  std::atomic<std::uint64_t> round_{0};
  std::atomic<int> left_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> workers_;
};

// One iteration = one round of four windows: copy and lookup, each by one thread and by all.
void scaling(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  constexpr int kCopyDistance = 12;
  constexpr int kRepeat = 4;  // id windows a timed window: longer than the start of a thread
  Team team(threads);
  std::vector<std::vector<Bf16>> staging(static_cast<std::size_t>(threads));
  std::vector<std::vector<std::byte>> copied(static_cast<std::size_t>(threads));
  for (auto& buffer : staging) buffer.resize(static_cast<std::size_t>(kRows) * kWeightBytes);
  for (auto& buffer : copied) buffer.resize(static_cast<std::size_t>(kRows) * kRowBytes);
  const TableView table = setup->table(TableLayout::split);
  std::size_t window = 0;
  // Each thread does whole windows of its own: what ranks and workers do, without a shared staging line.
  const std::function<void(int)> copy = [&](int t) {
    for (int r = 0; r < kRepeat; ++r) {
      copy_rows(table, setup->window(window + static_cast<std::size_t>(t * kRepeat + r)), 0, kRows, kCopyDistance,
                copied[static_cast<std::size_t>(t)].data());
    }
  };
  const std::function<void(int)> look_up = [&](int t) {
    for (int r = 0; r < kRepeat; ++r) {
      kernels::lookup_program(lookup_args(TableLayout::split, window + static_cast<std::size_t>(t * kRepeat + r),
                                          staging[static_cast<std::size_t>(t)].data()),
                              0, 1);
    }
  };
  std::vector<double> copy_one;
  std::vector<double> copy_all;
  std::vector<double> lookup_one;
  std::vector<double> lookup_all;
  const auto advance = [&] { window += static_cast<std::size_t>(threads * kRepeat); };
  for (auto _ : state) {
    copy_one.push_back(seconds([&] { copy(0); }));
    advance();
    lookup_one.push_back(seconds([&] { look_up(0); }));
    advance();
    copy_all.push_back(team.run(copy));
    advance();
    lookup_all.push_back(team.run(look_up));
    advance();
  }
  const double copy_scaling = threads * median(copy_one) / median(copy_all);
  const double lookup_scaling = threads * median(lookup_one) / median(lookup_all);
  state.counters["copy_scaling"] = copy_scaling;
  state.counters["lookup_scaling"] = lookup_scaling;
  state.counters["ratio"] = lookup_scaling / copy_scaling;
}

void register_all() {
  const auto threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  benchmark::RegisterBenchmark("lookup_against_copy", lookup_against_copy)
      ->Arg(static_cast<std::int64_t>(TableLayout::split))
      ->Arg(static_cast<std::int64_t>(TableLayout::interleaved))
      ->Iterations(60)
      ->Unit(benchmark::kMillisecond);
  for (int t = 2; t <= threads; t *= 2) {
    benchmark::RegisterBenchmark("scaling/threads", scaling)->Arg(t)->Iterations(100)->Unit(benchmark::kMillisecond);
  }
  auto* kernel = benchmark::RegisterBenchmark("lookup", lookup);
  kernel->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (const TableLayout layout : {TableLayout::split, TableLayout::interleaved}) {
    for (const Order order : {Order::token, Order::table}) {
      for (const CpuVariant variant : kernels::supported_variants()) {
        kernel->Args(
            {static_cast<std::int64_t>(layout), static_cast<std::int64_t>(order), static_cast<std::int64_t>(variant)});
      }
    }
  }
  benchmark::RegisterBenchmark("sort_rows", sort_rows)->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace eb::bench

int main(int argc, char** argv) {
  using namespace eb;
  try {
    const std::size_t bytes = bench::table_bytes_wanted(std::size_t{4} << 30);
    if (const std::string reason = bench::memory_obstacle(bytes); !reason.empty()) {
      std::fprintf(stderr, "lookup_bench: skipped: %s\n", reason.c_str());
      return bench::kSkipped;
    }
    bench::setup.emplace(bytes);
    bench::register_all();
    return bench::run_benchmarks(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "lookup_bench: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
}
