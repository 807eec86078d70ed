// Select on CUDA: a copy of strided pieces. Bound by memory; the widest word that all sizes allow is moved by each
// thread.
#include "kernels/cuda.h"

#include <algorithm>

namespace eb::kernels {

namespace {

constexpr int kThreads = 256;

template <typename Word>
__global__ void __launch_bounds__(kThreads) select_kernel(const __grid_constant__ SelectArgs args) {
  constexpr std::int64_t kWord = sizeof(Word);
  const std::int64_t row_words = args.dst_row_bytes / kWord;
  const std::int64_t piece_words = args.piece_bytes / kWord;
  const std::int64_t total = args.tokens * row_words;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += step) {
    const std::int64_t token = i / row_words;
    const std::int64_t word = i - token * row_words;
    Word value{};
    if (token < args.valid_tokens) {
      const std::int64_t source = word / piece_words;
      const std::byte* row = args.src + source * args.source_stride + (args.first_token + token) * args.token_stride;
      value = reinterpret_cast<const Word*>(row)[word - source * piece_words];
    }
    reinterpret_cast<Word*>(args.dst)[i] = value;
  }
}

template <typename Word>
cudaError_t launch(const SelectArgs& args, cudaStream_t stream) {
  const std::int64_t total = args.tokens * args.dst_row_bytes / static_cast<std::int64_t>(sizeof(Word));
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((total + kThreads - 1) / kThreads, 132 * 16));
  select_kernel<Word><<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t select_cuda(const SelectArgs& args, cudaStream_t stream) {
  if (args.tokens == 0 || args.dst_row_bytes == 0) return cudaSuccess;
  const auto all =
      reinterpret_cast<std::uintptr_t>(args.src) | reinterpret_cast<std::uintptr_t>(args.dst) |
      static_cast<std::uintptr_t>(args.source_stride | args.token_stride | args.piece_bytes | args.dst_row_bytes);
  return all % 16 == 0 ? launch<uint4>(args, stream) : launch<std::uint16_t>(args, stream);
}

}  // namespace eb::kernels
