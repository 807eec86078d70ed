// What the kernel benches share: a table in memory as the product has it, clocks, medians, skipping with a reason.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/base/mapping.h"
#include "kernels/lookup.h"

namespace eb::bench {

// Exit code of a bench that this machine cannot run; meson shows it as skipped.
inline constexpr int kSkipped = 77;

// Bytes of the table: environment variable ENGRAM_BENCH_TABLE_BYTES, else `fallback`.
// Errors: Error(usage) for a value that is not a positive number.
[[nodiscard]] std::size_t table_bytes_wanted(std::size_t fallback);

// Empty, or why `bytes` cannot be allocated here, with the figures.
[[nodiscard]] std::string memory_obstacle(std::size_t bytes);

// A shared mapping (memfd, base pages, as the product's tables lie in) whose every byte is written: any byte of it is
// a number as an E4M3 weight and an ordinary scale, so a table of either layout can be laid over it.
[[nodiscard]] Mapping make_table_memory(std::size_t bytes);

// Rows of deepseek-v4.1-flash (256 weights, 8 scales) over `memory`, as many as fit.
[[nodiscard]] kernels::TableView split_table(const Mapping& memory);
[[nodiscard]] kernels::TableView interleaved_table(const Mapping& memory);

[[nodiscard]] std::vector<std::int32_t> random_ids(std::size_t count, std::int64_t rows, std::uint64_t seed);

// Middle value (lower one of two); `values` not empty.
[[nodiscard]] double median(std::vector<double> values);

// Prints the context lines every bench shows (instruction set, CPUs) and runs what was registered; the exit code.
int run_benchmarks(int argc, char** argv);

}  // namespace eb::bench
