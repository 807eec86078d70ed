// Lookup on CUDA. A persistent grid over tiles of 16 rows; all loads of a row are issued before the first is used, so
// that a tile costs one trip to the table, and the ids of the next tile are fetched while this one's rows are on their
// way.
//
// The shape goes by where the table lies (docs/performance.md has the trials):
// - Host memory, rows of 256 E4M3: lookup_host.cuh.
// - Host memory, other rows: a warp a row or less, 16 bytes a lane.
// - Device memory: half a warp a row, 16 bytes a lane; neighbouring lanes swap halves so that stores fill whole
// sectors.
//   Bound by L2 and instruction issue: the row length is a template argument, which took the time from 52 to 50 us.
#include <algorithm>

#include "kernels/cuda.h"
#include "kernels/device.cuh"
#include "kernels/lookup_host.cuh"

namespace eb::kernels {

namespace {

constexpr int kBlockThreads = 1024;       // at most: several tiles side by side
constexpr std::int32_t kNone = -1;        // zero row
constexpr std::int64_t kPhaseTiles = 10;  // fewer: the wait between scales and weights costs more than it brings

struct Row {
  std::int64_t place = -1;  // row of staging, -1: past the end
  std::int32_t local = kNone;
};

template <bool kOrdered>
__device__ __forceinline__ Row find_row(const LookupArgs& args, std::int64_t rows, std::int64_t index) {
  Row row;
  if (index >= rows) return row;
  row.place = kOrdered ? __ldg(args.order + index) : index;
  const std::int64_t local = static_cast<std::int64_t>(row_id(args, row.place)) - args.table.first_row;
  row.local = local >= 0 && local < args.table.rows ? static_cast<std::int32_t>(local) : kNone;
  return row;
}

// What one lane holds of a row. `store` is called by all lanes of the warp; a null `row` writes nothing.
struct E4m3Piece8 {
  static constexpr int kElements = 8;
  uint2 weights = {0, 0};
  std::uint32_t scale = 0;

  __device__ __forceinline__ void load(const TableView& table, std::int64_t local, int element, int block) {
    weights = load_table8(table.weights + local * table.weight_stride + element);
    scale = load_table1(table.scales + local * table.scale_stride + element / block);
  }
  __device__ __forceinline__ void store(Bf16* row, int element, int dim) const {
    if (row == nullptr || element >= dim) return;
    const float factor = __uint_as_float(scale << 23);
    *reinterpret_cast<uint4*>(row + element) =
        make_uint4(dequantise(weights.x, factor), dequantise(weights.x >> 16, factor), dequantise(weights.y, factor),
                   dequantise(weights.y >> 16, factor));
  }
};

struct E4m3Piece16 {
  static constexpr int kElements = 16;
  uint4 weights = {0, 0, 0, 0};
  std::uint32_t scale = 0;

  __device__ __forceinline__ void load(const TableView& table, std::int64_t local, int element, int block) {
    weights = load_table16(table.weights + local * table.weight_stride + element);
    scale = load_table1(table.scales + local * table.scale_stride + element / block);
  }
  __device__ __forceinline__ void store(Bf16* row, int element, int dim) const {
    const float factor = __uint_as_float(scale << 23);
    const uint4 low = make_uint4(dequantise(weights.x, factor), dequantise(weights.x >> 16, factor),
                                 dequantise(weights.y, factor), dequantise(weights.y >> 16, factor));
    const uint4 high = make_uint4(dequantise(weights.z, factor), dequantise(weights.z >> 16, factor),
                                  dequantise(weights.w, factor), dequantise(weights.w >> 16, factor));
    const bool odd = (threadIdx.x & 1U) != 0;
    const uint4 give = odd ? low : high;
    const uint4 got = make_uint4(__shfl_xor_sync(~0U, give.x, 1), __shfl_xor_sync(~0U, give.y, 1),
                                 __shfl_xor_sync(~0U, give.z, 1), __shfl_xor_sync(~0U, give.w, 1));
    if (row == nullptr) return;
    const int first = element - (odd ? kElements : 0);  // of the pair
    auto* place = reinterpret_cast<uint4*>(row + first);
    if (first < dim) place[odd ? 1 : 0] = odd ? got : low;
    if (first + kElements < dim) place[odd ? 3 : 2] = odd ? high : got;
  }
};

struct Bf16Piece {
  static constexpr int kElements = 8;
  uint4 values = {0, 0, 0, 0};

  __device__ __forceinline__ void load(const TableView& table, std::int64_t local, int element, int /*block*/) {
    values = load_table16(table.weights + local * table.weight_stride + element * 2);
  }
  __device__ __forceinline__ void store(Bf16* row, int element, int dim) const {
    if (row != nullptr && element < dim) *reinterpret_cast<uint4*>(row + element) = values;
  }
};

// Lanes of a row, and so threads of a tile: a whole row of 256 elements at once.
template <typename Piece>
constexpr int kLanes = 256 / Piece::kElements;
template <typename Piece>
constexpr int kTileThreads = kTileRows* kLanes<Piece>;

// A block has blockDim.x / kTileThreads groups. Group g of block b takes tiles b + gridDim.x * (g + groups * i):
// gridDim.x programs share the tiles, whatever the block's width. kDim, kBlock: the table's, or 0 = read from args.
template <typename Piece, int kDim, int kBlock, bool kOrdered>
__device__ __forceinline__ void look_up(const LookupArgs& args, const std::int64_t rows, const std::int32_t tiles) {
  const int dim = kDim > 0 ? kDim : args.table.dim;
  const int block = kDim > 0 ? kBlock : args.table.block;
  const int groups = static_cast<int>(blockDim.x) / kTileThreads<Piece>;
  const int group = static_cast<int>(threadIdx.x) / kTileThreads<Piece>;
  const int row_in_tile = static_cast<int>(threadIdx.x) % kTileThreads<Piece> / kLanes<Piece>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes<Piece>;
  const auto stride = static_cast<std::int32_t>(gridDim.x) * groups;
  std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) + static_cast<std::int32_t>(gridDim.x) * group;

  Row next = find_row<kOrdered>(args, rows, static_cast<std::int64_t>(tile) * kTileRows + row_in_tile);
  for (; tile < tiles; tile += stride) {
    const Row now = next;
    Bf16* const out = now.place >= 0 ? args.staging + now.place * dim : nullptr;
    for (int base = 0; base < dim; base += kLanes<Piece> * Piece::kElements) {
      const int element = base + lane * Piece::kElements;
      Piece piece;
      if (now.local != kNone && element < dim) piece.load(args.table, now.local, element, block);
      if (base == 0 && tile + stride < tiles) {
        next = find_row<kOrdered>(args, rows, static_cast<std::int64_t>(tile + stride) * kTileRows + row_in_tile);
      }
      piece.store(out, element, dim);
    }
  }
}

template <typename Piece, int kDim, int kBlock, bool kOrdered>
__global__ void __launch_bounds__(kBlockThreads)
    lookup_kernel(const __grid_constant__ LookupArgs args, const std::int64_t rows, const std::int32_t tiles) {
  look_up<Piece, kDim, kBlock, kOrdered>(args, rows, tiles);
}

// The same, and each block says where it ran. A kernel of its own, so that the one that is timed has none of it.
template <typename Piece, int kDim, int kBlock, bool kOrdered>
__global__ void __launch_bounds__(kBlockThreads)
    watched_kernel(const __grid_constant__ LookupArgs args, const std::int64_t rows, const std::int32_t tiles,
                   std::uint32_t* units) {
  if (threadIdx.x == 0) atomicAdd(units + sm_number() % kUnitCounts, 1U);
  look_up<Piece, kDim, kBlock, kOrdered>(args, rows, tiles);
}

// kWatched as watched_kernel. One tile a program: at most as many tiles as programs.
template <bool kOrdered, bool kWatched>
__global__ void __launch_bounds__(kHostTileThreads)
    tile_kernel(const __grid_constant__ HostLookup args, std::uint32_t* units) {
  if (kWatched && threadIdx.x == 0) atomicAdd(units + sm_number() % kUnitCounts, 1U);
  look_up_tile<kOrdered>(args);
}

template <bool kOrdered, bool kWatched>
__global__ void __launch_bounds__(kHostTileThreads)
    tile_phases_kernel(const __grid_constant__ HostLookup args, std::uint32_t* units) {
  if (kWatched && threadIdx.x == 0) atomicAdd(units + sm_number() % kUnitCounts, 1U);
  look_up_tile_by_phases<kOrdered>(args);
}

template <bool kOrdered, bool kWatched>
__global__ void __launch_bounds__(kBlockThreads)
    phases_kernel(const __grid_constant__ HostLookup args, std::uint32_t* units) {
  if (kWatched && threadIdx.x == 0) atomicAdd(units + sm_number() % kUnitCounts, 1U);
  look_up_by_phases<kOrdered>(args);
}

struct Choice {
  const void* kernel = nullptr;
  const void* watched = nullptr;
  bool host_rows = false;  // takes a HostLookup
  int threads = 0;
  std::int64_t grid = 0;
};

template <typename Kernel>
const void* address(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

template <typename Piece, int kDim, int kBlock>
void choose(const LookupArgs& args, Choice& choice) {
  const std::int64_t tiles_per_program = (args.tiles() + choice.grid - 1) / choice.grid;
  constexpr int kGroups = kBlockThreads / kTileThreads<Piece>;
  choice.threads = kTileThreads<Piece> * static_cast<int>(std::clamp<std::int64_t>(tiles_per_program, 1, kGroups));
  const bool ordered = args.order != nullptr;
  choice.kernel =
      ordered ? address(lookup_kernel<Piece, kDim, kBlock, true>) : address(lookup_kernel<Piece, kDim, kBlock, false>);
  choice.watched = ordered ? address(watched_kernel<Piece, kDim, kBlock, true>)
                           : address(watched_kernel<Piece, kDim, kBlock, false>);
}

void choose_tile(const LookupArgs& args, Choice& choice) {
  const bool ordered = args.order != nullptr;
  choice.host_rows = true;
  choice.threads = kHostTileThreads;
  choice.kernel = ordered ? address(tile_kernel<true, false>) : address(tile_kernel<false, false>);
  choice.watched = ordered ? address(tile_kernel<true, true>) : address(tile_kernel<false, true>);
}

void choose_phases(const LookupArgs& args, Choice& choice) {
  const bool ordered = args.order != nullptr;
  choice.host_rows = true;
  if (args.tiles() <= choice.grid) {
    choice.threads = kHostTileThreads;
    choice.kernel = ordered ? address(tile_phases_kernel<true, false>) : address(tile_phases_kernel<false, false>);
    choice.watched = ordered ? address(tile_phases_kernel<true, true>) : address(tile_phases_kernel<false, true>);
    return;
  }
  choice.threads = kBlockThreads;
  choice.kernel = ordered ? address(phases_kernel<true, false>) : address(phases_kernel<false, false>);
  choice.watched = ordered ? address(phases_kernel<true, true>) : address(phases_kernel<false, true>);
}

std::uint64_t reciprocal(std::int32_t heads) {
  const auto divisor = static_cast<std::uint64_t>(heads);
  return ((std::uint64_t{1} << 32) + divisor - 1) / divisor;
}

// What the kernels of lookup_host.cuh take for granted: scales that can be read eight at a time, numbers of 32 bits,
// rows that the rounded reciprocal divides exactly. Every table of a plan is so.
bool fits_host_kernels(const LookupArgs& args) {
  const TableView& table = args.table;
  constexpr std::int64_t kMost = INT32_MAX;
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(table.scales) | static_cast<std::uintptr_t>(table.scale_stride)) % 8 == 0;
  const std::uint64_t excess =
      reciprocal(args.heads) * static_cast<std::uint64_t>(args.heads) - (std::uint64_t{1} << 32);
  return aligned && table.rows <= kMost && table.weight_stride <= kMost && table.scale_stride <= kMost &&
         args.rows() <= kMost && static_cast<std::uint64_t>(args.rows()) * excess < (std::uint64_t{1} << 32);
}

Choice choose(const LookupArgs& args, std::int64_t grid_cap, LookupShape shape = LookupShape::best) {
  Choice choice;
  choice.grid = std::max<std::int64_t>(1, std::min(args.tiles(), grid_cap));
  const TableView& table = args.table;
  const bool usual = table.dim == 256 && table.block == 32;
  // With a row's scales in the same page as its weights there is nothing to gain by asking for them apart.
  const bool apart = table.scale_stride != table.weight_stride;
  if (table.format == RowFormat::bf16) {
    choose<Bf16Piece, 0, 0>(args, choice);
  } else if (!usual) {
    choose<E4m3Piece16, 0, 0>(args, choice);
  } else if (table.in_device_memory) {
    choose<E4m3Piece16, 256, 32>(args, choice);
  } else if (shape == LookupShape::general || !fits_host_kernels(args)) {
    choose<E4m3Piece8, 256, 32>(args, choice);
  } else if (args.tiles() <= choice.grid && (!apart || args.tiles() < kPhaseTiles)) {
    choose_tile(args, choice);
  } else if (apart) {
    choose_phases(args, choice);
  } else {
    choose<E4m3Piece8, 256, 32>(args, choice);
  }
  return choice;
}

HostLookup host_lookup(const LookupArgs& args) {
  HostLookup out;
  out.weights = args.table.weights;
  out.scales = args.table.scales;
  out.ids = args.ids;
  out.order = args.order;
  out.staging = args.staging;
  out.weight_stride = static_cast<std::int32_t>(args.table.weight_stride);
  out.scale_stride = static_cast<std::int32_t>(args.table.scale_stride);
  out.id_token_stride = args.id_token_stride;
  out.id_offset = args.id_offset;
  out.first_row = args.table.first_row;
  out.table_rows = static_cast<std::int32_t>(args.table.rows);
  out.rows = static_cast<std::int32_t>(args.rows());
  out.tiles = static_cast<std::int32_t>(args.tiles());
  out.heads = args.heads;
  out.columns = args.columns;
  if (args.heads > 1) out.heads_reciprocal = static_cast<std::uint32_t>(reciprocal(args.heads));
  return out;
}

}  // namespace

cudaError_t lookup_cuda(const LookupArgs& args, std::int64_t grid_cap, cudaStream_t stream, std::int64_t* grid,
                        std::uint32_t* units, LookupShape shape) {
  if (args.rows() == 0) {
    if (grid != nullptr) *grid = 0;
    return cudaSuccess;
  }
  const Choice choice = choose(args, grid_cap, shape);
  if (grid != nullptr) *grid = choice.grid;
  const void* kernel = units == nullptr ? choice.kernel : choice.watched;
  const dim3 blocks(static_cast<unsigned>(choice.grid));
  const dim3 threads(static_cast<unsigned>(choice.threads));
  if (choice.host_rows) {
    HostLookup host = host_lookup(args);
    void* arguments[] = {&host, &units};
    return cudaLaunchKernel(kernel, blocks, threads, arguments, 0, stream);
  }
  LookupArgs all = args;
  std::int64_t rows = args.rows();
  auto tiles = static_cast<std::int32_t>(args.tiles());
  void* arguments[] = {&all, &rows, &tiles, &units};  // the last is the watched kernel's alone
  return cudaLaunchKernel(kernel, blocks, threads, arguments, 0, stream);
}

cudaError_t lookup_occupancy(const LookupArgs& args, std::int64_t grid_cap, LookupOccupancy* result) {
  const Choice choice = choose(args, grid_cap);
  cudaFuncAttributes attributes{};
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, choice.kernel); error != cudaSuccess) return error;
  result->threads = choice.threads;
  result->registers = attributes.numRegs;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&result->blocks_per_sm, choice.kernel, choice.threads, 0);
}

}  // namespace eb::kernels
