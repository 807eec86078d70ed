// The bare row gather on CUDA: the lookup's grid, tiles, lanes and loads (kernels/lookup.cu), with the loaded bytes
// folded into one word a row instead of dequantised and stored.
#include <algorithm>

#include "kernels/cuda.h"
#include "kernels/device.cuh"

namespace eb::kernels {

namespace {

constexpr int kBlockThreads = 1024;

__device__ __forceinline__ std::uint32_t load_folded(const std::byte* address, uint2* /*bytes of a lane*/) {
  const uint2 value = load_table8(address);
  return value.x ^ value.y;
}
__device__ __forceinline__ std::uint32_t load_folded(const std::byte* address, uint4* /*bytes of a lane*/) {
  const uint4 value = load_table16(address);
  return value.x ^ value.y ^ value.z ^ value.w;
}

struct Row {
  std::int64_t place = -1;  // row of the lookup, -1: past the end
  std::int64_t local = -1;  // row of the shard, -1: none
};

__device__ __forceinline__ Row find_row(const LookupArgs& args, std::int64_t rows, std::int64_t index) {
  Row row;
  if (index >= rows) return row;
  row.place = args.order == nullptr ? index : __ldg(args.order + index);
  const std::int64_t local = static_cast<std::int64_t>(row_id(args, row.place)) - args.table.first_row;
  row.local = local >= 0 && local < args.table.rows ? local : -1;
  return row;
}

// Lanes of a row: 256 bytes at once, as the lookup has them.
template <typename Word>
constexpr int kLanes = 256 / static_cast<int>(sizeof(Word));
template <typename Word>
constexpr int kTileThreads = kTileRows* kLanes<Word>;

template <typename Word>
__global__ void __launch_bounds__(kBlockThreads)
    gather_rows_kernel(const __grid_constant__ LookupArgs args, std::uint32_t* __restrict__ sums,
                       const std::int64_t rows, const std::int32_t tiles, const int weight_bytes,
                       const int scale_bytes) {
  const int groups = static_cast<int>(blockDim.x) / kTileThreads<Word>;
  const int group = static_cast<int>(threadIdx.x) / kTileThreads<Word>;
  const int row_in_tile = static_cast<int>(threadIdx.x) % kTileThreads<Word> / kLanes<Word>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes<Word>;
  const auto stride = static_cast<std::int32_t>(gridDim.x) * groups;
  std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) + static_cast<std::int32_t>(gridDim.x) * group;

  Row next = find_row(args, rows, static_cast<std::int64_t>(tile) * kTileRows + row_in_tile);
  for (; tile < tiles; tile += stride) {
    const Row now = next;
    std::uint32_t sum = 0;
    if (now.local >= 0) {
      const std::byte* const weights = args.table.weights + now.local * args.table.weight_stride;
      for (int at = lane * static_cast<int>(sizeof(Word)); at < weight_bytes; at += 256) {
        sum ^= load_folded(weights + at, static_cast<Word*>(nullptr));
      }
      const std::byte* const scales = args.table.scales + now.local * args.table.scale_stride;
      for (int at = lane; at < scale_bytes; at += kLanes<Word>) sum ^= load_table1(scales + at) << (8 * (at % 4));
    }
    if (tile + stride < tiles) {
      next = find_row(args, rows, static_cast<std::int64_t>(tile + stride) * kTileRows + row_in_tile);
    }
    for (int step = kLanes<Word> / 2; step > 0; step /= 2) sum ^= __shfl_xor_sync(~0U, sum, step);
    if (lane == 0 && now.place >= 0) sums[now.place] = sum;
  }
}

template <typename Word>
cudaError_t launch(const GatherArgs& args, std::int64_t grid, cudaStream_t stream) {
  const std::int64_t tiles = args.lookup.tiles();
  constexpr int kGroups = kBlockThreads / kTileThreads<Word>;
  const int threads =
      kTileThreads<Word> * static_cast<int>(std::clamp<std::int64_t>((tiles + grid - 1) / grid, 1, kGroups));
  gather_rows_kernel<Word><<<static_cast<unsigned>(grid), static_cast<unsigned>(threads), 0, stream>>>(
      args.lookup, args.sums, args.lookup.rows(), static_cast<std::int32_t>(tiles),
      static_cast<int>(args.weight_bytes()), static_cast<int>(args.scale_bytes()));
  return cudaGetLastError();
}

}  // namespace

cudaError_t gather_rows_cuda(const GatherArgs& args, std::int64_t grid_cap, cudaStream_t stream, std::int64_t* grid) {
  const std::int64_t programs =
      args.lookup.rows() == 0 ? 0 : std::max<std::int64_t>(1, std::min(args.lookup.tiles(), grid_cap));
  if (grid != nullptr) *grid = programs;
  if (programs == 0) return cudaSuccess;
  // As the lookup: 8 bytes a lane over PCIe, 16 from device memory and for BF16 rows.
  if (args.lookup.table.in_device_memory || args.lookup.table.format == RowFormat::bf16) {
    return launch<uint4>(args, programs, stream);
  }
  return launch<uint2>(args, programs, stream);
}

}  // namespace eb::kernels
