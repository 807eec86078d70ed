// Hash on CUDA: one thread an id. The rolling value is formed anew by each thread (four loads that neighbours share and
// a few multiplications); what costs is the 64-bit remainder, and so every thread does exactly one.
#include "kernels/cuda.h"

#include <algorithm>

namespace eb::kernels {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) hash_kernel(const __grid_constant__ HashArgs args) {
  const std::int64_t total = args.tokens * args.layer_count * args.columns;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    const auto column = static_cast<int>(i % args.columns);
    const std::int64_t pair = i / args.columns;
    const HashLayer& layer = args.layers[pair % args.layer_count];
    const std::int32_t* token = args.context + args.position[pair / args.layer_count];
    const int shifts = args.column_ngram[column];
    std::int64_t rolling = 0;
    bool blocked = false;
    for (int shift = 0; shift < shifts; ++shift) {
      const std::int32_t value = token[-shift];
      blocked = blocked || value < 0;  // dead or before the request's start: it and all farther ones hash as padding
      rolling ^= static_cast<std::int64_t>(blocked ? args.pad_id : value) * layer.multipliers[shift];
    }
    const auto remainder = static_cast<std::uint64_t>(rolling) % static_cast<std::uint64_t>(layer.primes[column]);
    args.ids[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(remainder) + layer.offsets[column]);
  }
}

}  // namespace

cudaError_t hash_cuda(const HashArgs& args, cudaStream_t stream) {
  const std::int64_t total = args.tokens * args.layer_count * args.columns;
  if (total == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((total + kThreads - 1) / kThreads, 4096));
  hash_kernel<<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace eb::kernels
