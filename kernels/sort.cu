// Sort of a lookup's rows by id on CUDA (prefetch.order = table): neighbours in the table are read one after the other,
// so that address translations are used more than once. Up to kBlockRows rows are sorted by one block in shared memory;
// more by CUB's device-wide radix sort. Both are stable, so the order equals the CPU twin's.
#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

#include <bit>

#include "kernels/cuda.h"
#include "kernels/device.cuh"

namespace eb::kernels {

namespace {

constexpr int kThreads = 512;
constexpr std::int64_t kBlockRows = 4096;

// Rows without an id sort last: their key is the shard's row count, above every local row.
__device__ __forceinline__ std::uint32_t key_of(const LookupArgs& args, std::int64_t row) {
  const std::int64_t local = static_cast<std::int64_t>(row_id(args, row)) - args.table.first_row;
  return static_cast<std::uint32_t>(local >= 0 && local < args.table.rows ? local : args.table.rows);
}

int key_bits(const LookupArgs& args) { return std::bit_width(static_cast<std::uint64_t>(args.table.rows)); }

template <int kItems>
__global__ void __launch_bounds__(kThreads)
    sort_block(const __grid_constant__ LookupArgs args, const std::int32_t rows, const int bits, std::int32_t* order) {
  using Sort = cub::BlockRadixSort<std::uint32_t, kThreads, kItems, std::int32_t>;
  __shared__ typename Sort::TempStorage storage;
  std::uint32_t keys[kItems];
  std::int32_t values[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const auto row = static_cast<std::int32_t>(threadIdx.x) * kItems + i;  // blocked: keeps the sort stable
    keys[i] = row < rows ? key_of(args, row) : 0xFFFFFFFFU;
    values[i] = row;
  }
  Sort(storage).SortBlockedToStriped(keys, values, 0, bits);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int place = i * kThreads + static_cast<int>(threadIdx.x);
    if (place < rows) order[place] = values[i];
  }
}

__global__ void __launch_bounds__(kThreads) fill_keys(const __grid_constant__ LookupArgs args, const std::int64_t rows,
                                                      std::uint32_t* keys, std::int32_t* values) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  keys[row] = key_of(args, row);
  values[row] = static_cast<std::int32_t>(row);
}

// Scratch: keys, sorted keys, values, then CUB's own.
std::size_t array_bytes(std::int64_t rows) { return (static_cast<std::size_t>(rows) * 4 + 255) / 256 * 256; }

std::size_t cub_bytes(std::int64_t rows) {
  std::size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const std::uint32_t*>(nullptr),
                                  static_cast<std::uint32_t*>(nullptr), static_cast<const std::int32_t*>(nullptr),
                                  static_cast<std::int32_t*>(nullptr), rows);
  return bytes;
}

template <int kItems>
void launch_block(const LookupArgs& args, std::int32_t* order, cudaStream_t stream) {
  // Padding keys are all ones: one bit more than the keys' own keeps them last.
  sort_block<kItems>
      <<<1, kThreads, 0, stream>>>(args, static_cast<std::int32_t>(args.rows()), key_bits(args) + 1, order);
}

}  // namespace

std::size_t sort_rows_scratch_bytes(std::int64_t rows) {
  return rows <= kBlockRows ? 0 : 3 * array_bytes(rows) + cub_bytes(rows);
}

cudaError_t sort_rows_cuda(const LookupArgs& args, std::int32_t* order, std::byte* scratch, std::size_t scratch_bytes,
                           cudaStream_t stream) {
  const std::int64_t rows = args.rows();
  if (rows == 0) return cudaSuccess;
  if (rows <= kBlockRows) {
    if (rows <= kThreads) {
      launch_block<1>(args, order, stream);
    } else if (rows <= kThreads * 2) {
      launch_block<2>(args, order, stream);
    } else if (rows <= kThreads * 4) {
      launch_block<4>(args, order, stream);
    } else {
      launch_block<8>(args, order, stream);
    }
    return cudaGetLastError();
  }
  if (scratch_bytes < sort_rows_scratch_bytes(rows)) return cudaErrorInvalidValue;
  auto* keys = reinterpret_cast<std::uint32_t*>(scratch);
  auto* sorted = reinterpret_cast<std::uint32_t*>(scratch + array_bytes(rows));
  auto* values = reinterpret_cast<std::int32_t*>(scratch + 2 * array_bytes(rows));
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  fill_keys<<<blocks, kThreads, 0, stream>>>(args, rows, keys, values);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  std::size_t bytes = scratch_bytes - 3 * array_bytes(rows);
  return cub::DeviceRadixSort::SortPairs(scratch + 3 * array_bytes(rows), bytes, keys, sorted, values, order, rows, 0,
                                         key_bits(args), stream);
}

}  // namespace eb::kernels
