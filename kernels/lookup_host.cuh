// Lookup of rows of 256 E4M3 elements, a scale each 32, from host memory. Three kernels, by how many tiles there are.
//
// What bounds them is address translation, 28 ns for each place of a row on the machine measured (docs/performance.md):
// - Few tiles: a short way from launch to the last request. One warp a row, no loop, no argument that is not needed,
// one
//   request for a row's eight scales.
// - From ten tiles on, weights and scales apart (split layout): all scales first, and only when they are there the
//   weights. The scales are a thirty-third of the table, so their translations are found more often while nothing else
//   is asked for; with few rows the wait between costs more than that brings. A tile a program, or several.
#pragma once

#include "kernels/device.cuh"
#include "kernels/lookup.h"

namespace eb::kernels {

struct HostLookup {
  const std::byte* weights = nullptr;
  const std::byte* scales = nullptr;
  const std::int32_t* ids = nullptr;
  const std::int32_t* order = nullptr;
  Bf16* staging = nullptr;
  std::int64_t id_token_stride = 0;
  std::int64_t id_offset = 0;
  std::int64_t first_row = 0;
  std::int32_t table_rows = 0;
  std::int32_t weight_stride = 0;
  std::int32_t scale_stride = 0;
  std::int32_t rows = 0;
  std::int32_t tiles = 0;
  std::int32_t heads = 0;
  std::int32_t columns = 0;
  std::uint32_t heads_reciprocal = 0;  // 2^32 / heads, rounded up: exact for these rows; 0: heads is 1
};

inline constexpr int kHostTileThreads = kTileRows * 32;
// Of scales and places of rows kept in shared memory: 48 KiB with the order's.
inline constexpr int kChunkTiles = 192;
inline constexpr std::int32_t kNoRow = -1;    // a zero row
inline constexpr std::int32_t kPastEnd = -2;  // no row at all

// The shard's row that belongs at row `place` of staging, or kNoRow.
__device__ __forceinline__ std::int32_t local_row(const HostLookup& args, std::int32_t place) {
  const auto row = static_cast<std::uint32_t>(place);
  const std::uint32_t token = args.heads_reciprocal == 0 ? row : __umulhi(row, args.heads_reciprocal);
  const std::int32_t head = place - static_cast<std::int32_t>(token) * args.heads;
  const std::int32_t id =
      head < args.columns ? __ldg(args.ids + token * args.id_token_stride + args.id_offset + head) : -1;
  const std::int64_t local = static_cast<std::int64_t>(id) - args.first_row;
  return local >= 0 && local < args.table_rows ? static_cast<std::int32_t>(local) : kNoRow;
}

__device__ __forceinline__ std::uint32_t scale_byte(uint2 scales, int element) {
  return (element < 128 ? scales.x : scales.y) >> (element / 32 % 4 * 8) & 0xFFU;
}

__device__ __forceinline__ void store8(Bf16* to, uint2 weights, std::uint32_t scale) {
  const float factor = __uint_as_float(scale << 23);
  *reinterpret_cast<uint4*>(to) = make_uint4(dequantise(weights.x, factor), dequantise(weights.x >> 16, factor),
                                             dequantise(weights.y, factor), dequantise(weights.y >> 16, factor));
}

__device__ __forceinline__ const std::byte* weights_of(const HostLookup& args, std::int32_t local) {
  return args.weights + static_cast<std::int64_t>(local) * args.weight_stride;
}
__device__ __forceinline__ const std::byte* scales_of(const HostLookup& args, std::int32_t local) {
  return args.scales + static_cast<std::int64_t>(local) * args.scale_stride;
}

template <bool kOrdered>
__device__ __forceinline__ void look_up_tile(const HostLookup& args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t index =
      static_cast<std::int32_t>(blockIdx.x) * kTileRows + static_cast<std::int32_t>(threadIdx.x) / 32;
  if (index >= args.rows) return;
  const std::int32_t place = kOrdered ? __ldg(args.order + index) : index;
  const std::int32_t local = local_row(args, place);
  uint2 weights = {0, 0};
  std::uint32_t scale = 0;
  if (local != kNoRow) {
    uint2 scales = {0, 0};
    weights = load_table8(weights_of(args, local) + lane * 8);
    if (lane == 0) scales = load_table8(scales_of(args, local));
    scales.x = __shfl_sync(~0U, scales.x, 0);
    scales.y = __shfl_sync(~0U, scales.y, 0);
    scale = scale_byte(scales, lane * 8);
  }
  store8(args.staging + static_cast<std::int64_t>(place) * 256 + lane * 8, weights, scale);
}

// One warp loads the tile's scales.
template <bool kOrdered>
__device__ __forceinline__ void look_up_tile_by_phases(const HostLookup& args) {
  __shared__ uint2 scales[kTileRows];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * kTileRows;
  const auto place_of = [&](std::int32_t index) { return kOrdered ? __ldg(args.order + index) : index; };
  if (warp == 0 && lane < kTileRows && first + lane < args.rows) {
    const std::int32_t local = local_row(args, place_of(first + lane));
    if (local != kNoRow) scales[lane] = load_table8(scales_of(args, local));
  }
  const bool inside = first + warp < args.rows;
  const std::int32_t place = inside ? place_of(first + warp) : 0;
  const std::int32_t local = inside ? local_row(args, place) : kNoRow;
  __syncthreads();
  if (!inside) return;
  uint2 weights = {0, 0};
  std::uint32_t scale = 0;
  if (local != kNoRow) {
    weights = load_table8(weights_of(args, local) + lane * 8);
    scale = scale_byte(scales[warp], lane * 8);
  }
  store8(args.staging + static_cast<std::int64_t>(place) * 256 + lane * 8, weights, scale);
}

template <bool kOrdered>
__device__ __forceinline__ void look_up_by_phases(const HostLookup& args) {
  __shared__ uint2 scales[kChunkTiles * kTileRows];
  __shared__ std::int32_t locals[kChunkTiles * kTileRows];
  __shared__ std::int32_t places[kOrdered ? kChunkTiles * kTileRows : 1];
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const auto grid = static_cast<std::int32_t>(gridDim.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const std::int32_t own_tiles = (args.tiles - block + grid - 1) / grid;
  for (std::int32_t done = 0; done < own_tiles; done += kChunkTiles) {
    const int rows = min(kChunkTiles, own_tiles - done) * kTileRows;
    const auto index_of = [&](int i) { return (block + grid * (done + i / kTileRows)) * kTileRows + i % kTileRows; };
    for (int i = static_cast<int>(threadIdx.x); i < rows; i += static_cast<int>(blockDim.x)) {
      const std::int32_t index = index_of(i);
      std::int32_t local = kPastEnd;
      if (index < args.rows) {
        const std::int32_t place = kOrdered ? __ldg(args.order + index) : index;
        if (kOrdered) places[i] = place;
        local = local_row(args, place);
      }
      locals[i] = local;
      if (local >= 0) scales[i] = load_table8(scales_of(args, local));
    }
    __syncthreads();
    for (int i = warp; i < rows; i += warps) {
      const std::int32_t local = locals[i];
      if (local == kPastEnd) break;  // the last tile's end, and nothing after it
      uint2 weights = {0, 0};
      std::uint32_t scale = 0;
      if (local != kNoRow) {
        weights = load_table8(weights_of(args, local) + lane * 8);
        scale = scale_byte(scales[i], lane * 8);
      }
      const std::int32_t place = kOrdered ? places[i] : index_of(i);
      store8(args.staging + static_cast<std::int64_t>(place) * 256 + lane * 8, weights, scale);
    }
    __syncthreads();
  }
}

}  // namespace eb::kernels
