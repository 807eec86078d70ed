// Gate on CUDA: one block a token. Bound by memory: hidden and kv are read once, 16 bytes a load, and stay in registers
// between the sums and the update. They pass by L1, which keeps q and k for the blocks that follow.
#include "kernels/cuda.h"
#include "kernels/device.cuh"

namespace eb::kernels {

namespace {

constexpr int kMaxCopies = 8;
constexpr int kMaxThreads = 1024;
constexpr int kVector = 8;  // elements of a 16-byte load
constexpr int kSums = 3;    // hidden*q*k*key, hidden^2, key^2

// Read once by this kernel. Where the same thread writes it later, what it writes depends on what it read.
__device__ __forceinline__ uint4 load_once(const uint4* address) {
  uint4 value;
  asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(address));
  return value;
}

struct Sums {
  float value[kSums];
};

__device__ __forceinline__ void add(Sums& sums, uint4 hidden, uint4 key, uint4 q, uint4 k) {
  const std::uint32_t h[4] = {hidden.x, hidden.y, hidden.z, hidden.w};
  const std::uint32_t y[4] = {key.x, key.y, key.z, key.w};
  const std::uint32_t a[4] = {q.x, q.y, q.z, q.w};
  const std::uint32_t b[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 hv = unpack_bf16(h[i]);
    const float2 yv = unpack_bf16(y[i]);
    const float2 qv = unpack_bf16(a[i]);
    const float2 kv = unpack_bf16(b[i]);
    sums.value[0] += hv.x * qv.x * kv.x * yv.x + hv.y * qv.y * kv.y * yv.y;
    sums.value[1] += hv.x * hv.x + hv.y * hv.y;
    sums.value[2] += yv.x * yv.x + yv.y * yv.y;
  }
}

__device__ __forceinline__ uint4 update(uint4 hidden, uint4 value, float gate) {
  const std::uint32_t h[4] = {hidden.x, hidden.y, hidden.z, hidden.w};
  const std::uint32_t v[4] = {value.x, value.y, value.z, value.w};
  std::uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 hv = unpack_bf16(h[i]);
    const float2 vv = unpack_bf16(v[i]);
    const __nv_bfloat162 pair = __floats2bfloat162_rn(hv.x + gate * vv.x, hv.y + gate * vv.y);  // one instruction
    out[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

__device__ __forceinline__ float gate_of(const Sums& sums, float dim, float eps) {
  const float d = sums.value[0] * rsqrtf(sums.value[1] / dim + eps) * rsqrtf(sums.value[2] / dim + eps) * rsqrtf(dim);
  const float root = sqrtf(fmaxf(fabsf(d), 1e-6F));
  return 1.0F / (1.0F + expf(d < 0 ? root : -root));
}

// Sums of all copies over the warp, left in partial[copy * kSums + sum]. Where the copies are 2 or 4 the lanes share
// them out first: each half of the warp goes on with half of the sums, so that 12 sums take 18 exchanges, not 60.
template <int kCopies>
__device__ __forceinline__ void reduce_warp(float (&sums)[kCopies * kSums], float* partial) {
  static_assert(kCopies == 2 || kCopies == 4);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int copy = 0;
  int delta = 16;
#pragma unroll
  for (int copies = kCopies / 2; copies > 0; copies /= 2, delta /= 2) {
    const bool upper = (lane & delta) != 0;
    if (upper) copy += copies;
#pragma unroll
    for (int i = 0; i < copies * kSums; ++i) {
      const float give = upper ? sums[i] : sums[i + copies * kSums];
      const float keep = upper ? sums[i + copies * kSums] : sums[i];
      sums[i] = keep + __shfl_xor_sync(0xFFFFFFFFU, give, delta);
    }
  }
  const int writers = delta * 2 - 1;  // lanes of a copy, less one
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    for (int d = delta; d > 0; d /= 2) sums[s] += __shfl_xor_sync(0xFFFFFFFFU, sums[s], d);
    if ((lane & writers) == 0) partial[copy * kSums + s] = sums[s];
  }
}

// kCopies > 0: one vector a thread and copy, all in registers (threads * 8 >= dim). 0: any shape, hidden read twice.
template <int kCopies, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) gate_kernel(const __grid_constant__ GateArgs args) {
  __shared__ float partial[kMaxThreads / 32][kMaxCopies * kSums];
  __shared__ float gates[kMaxCopies];
  const std::int64_t token = blockIdx.x;
  if (args.masked != nullptr && args.masked[token] != 0) return;  // g = 0: hidden stays
  const int copies = kCopies > 0 ? kCopies : args.copies;
  const int vectors = args.dim / kVector;
  auto* hidden = reinterpret_cast<uint4*>(args.hidden) + token * copies * vectors;
  const auto* kv = reinterpret_cast<const uint4*>(args.kv) + token * (copies + 1) * vectors;
  const auto* q = reinterpret_cast<const uint4*>(args.q);
  const auto* k = reinterpret_cast<const uint4*>(args.k);
  const int warp = static_cast<int>(threadIdx.x) / 32;

  constexpr int kHeld = kCopies > 0 ? kCopies : 1;
  uint4 held[kHeld] = {};
  uint4 value = {};
  const bool owns = static_cast<int>(threadIdx.x) < vectors;
  if constexpr (kCopies > 0) {
    float all[kCopies * kSums] = {};
    if (owns) {
#pragma unroll
      for (int h = 0; h < kCopies; ++h) held[h] = load_once(hidden + h * vectors + threadIdx.x);
#pragma unroll
      for (int h = 0; h < kCopies; ++h) {
        Sums sums{};
        const int at = h * vectors + static_cast<int>(threadIdx.x);
        add(sums, held[h], load_once(kv + at), __ldg(q + at), __ldg(k + at));
#pragma unroll
        for (int i = 0; i < kSums; ++i) all[h * kSums + i] = sums.value[i];
      }
    }
    reduce_warp<kCopies>(all, partial[warp]);
    if (owns) value = load_once(kv + kCopies * vectors + threadIdx.x);  // under way while the block adds up
  } else {
    for (int h = 0; h < copies; ++h) {
      Sums sums{};
      for (int i = static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) {
        const int at = h * vectors + i;
        add(sums, hidden[at], kv[at], q[at], k[at]);
      }
      for (int s = 0; s < kSums; ++s) {
        for (int delta = 16; delta > 0; delta /= 2) sums.value[s] += __shfl_xor_sync(0xFFFFFFFFU, sums.value[s], delta);
        if (threadIdx.x % 32 == 0) partial[warp][h * kSums + s] = sums.value[s];
      }
    }
  }
  __syncthreads();
  // A warp a copy adds up what all warps left.
  for (int h = warp; h < copies; h += static_cast<int>(blockDim.x) / 32) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    Sums sums{};
    for (int s = 0; s < kSums; ++s) {
      float sum = lane < static_cast<int>(blockDim.x) / 32 ? partial[lane][h * kSums + s] : 0.0F;
      for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, delta);
      sums.value[s] = sum;
    }
    if (lane == 0) gates[h] = gate_of(sums, static_cast<float>(args.dim), args.eps);
  }
  __syncthreads();
  if constexpr (kCopies > 0) {
    if (!owns) return;
#pragma unroll
    for (int h = 0; h < kCopies; ++h) hidden[h * vectors + threadIdx.x] = update(held[h], value, gates[h]);
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < copies * vectors; i += static_cast<int>(blockDim.x)) {
      hidden[i] = update(hidden[i], kv[copies * vectors + i % vectors], gates[i / vectors]);
    }
  }
}

}  // namespace

cudaError_t gate_cuda(const GateArgs& args, cudaStream_t stream) {
  if (args.tokens == 0) return cudaSuccess;
  if (args.dim % kVector != 0 || args.copies > kMaxCopies) return cudaErrorInvalidValue;
  const int vectors = args.dim / kVector;
  const auto threads = static_cast<unsigned>(vectors < kMaxThreads ? (vectors + 31) / 32 * 32 : kMaxThreads);
  const auto tokens = static_cast<unsigned>(args.tokens);
  if (args.copies == 4 && vectors <= 640) {
    gate_kernel<4, 640, 2><<<tokens, threads, 0, stream>>>(args);
  } else if (args.copies == 2 && vectors <= kMaxThreads) {
    gate_kernel<2, kMaxThreads, 1><<<tokens, threads, 0, stream>>>(args);
  } else {
    gate_kernel<0, kMaxThreads, 1><<<tokens, threads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace eb::kernels
