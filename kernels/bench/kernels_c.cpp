// C interface of the CUDA kernels for bench programs written in Python (ctypes): the product's own kernels, nothing
// else.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/cuda.h"

using eb::Bf16;
using namespace eb::kernels;

namespace {

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

LookupArgs lookup_args(const void* weights, const void* scales, std::int64_t weight_stride, std::int64_t scale_stride,
                       std::int64_t table_rows, const std::int32_t* ids, std::int64_t tokens, int heads,
                       const std::int32_t* order, void* staging) {
  LookupArgs args;
  cudaPointerAttributes attributes{};
  args.table.in_device_memory =
      cudaPointerGetAttributes(&attributes, weights) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
  args.table.weights = static_cast<const std::byte*>(weights);
  args.table.scales = static_cast<const std::byte*>(scales);
  args.table.weight_stride = weight_stride;
  args.table.scale_stride = scale_stride;
  args.table.rows = table_rows;
  args.table.dim = 256;
  args.table.block = 32;
  args.ids = ids;
  args.id_token_stride = heads;
  args.tokens = tokens;
  args.columns = heads;
  args.heads = heads;
  args.order = order;
  args.staging = static_cast<Bf16*>(staging);
  return args;
}

}  // namespace

extern "C" {

// Fills a table with random E4M3 codes (no NaN) or, with `scales`, bytes 120..133; by `threads` threads.
void eb_fill(void* address, std::size_t bytes, int threads, std::uint64_t seed, int scales) {
  std::vector<std::thread> pool;
  const std::size_t words = bytes / 8;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([=] {
      auto* out = static_cast<std::uint64_t*>(address);
      for (std::size_t i = words * t / threads; i < words * (t + 1) / threads; ++i) {
        std::uint64_t word = splitmix64(seed + i);
        if (scales != 0) {
          word = (word & 0x0707070707070707ULL) + 0x7878787878787878ULL;  // 120..127
        } else {
          const std::uint64_t low = word & 0x7F7F7F7F7F7F7F7FULL;
          word ^= ((low + 0x0101010101010101ULL) & 0x8080808080808080ULL) >> 7;  // S.1111.111 is NaN: flip its last bit
        }
        out[i] = word;
      }
    });
  }
  for (auto& thread : pool) thread.join();
}

void* eb_device_pointer(void* host) {
  void* device = nullptr;
  return cudaHostGetDevicePointer(&device, host, 0) == cudaSuccess ? device : nullptr;
}

int eb_lookup(const void* weights, const void* scales, std::int64_t weight_stride, std::int64_t scale_stride,
              std::int64_t table_rows, const std::int32_t* ids, std::int64_t tokens, int heads,
              const std::int32_t* order, void* staging, std::int64_t grid_cap, void* stream) {
  return lookup_cuda(
      lookup_args(weights, scales, weight_stride, scale_stride, table_rows, ids, tokens, heads, order, staging),
      grid_cap, static_cast<cudaStream_t>(stream), nullptr);
}

// As eb_lookup, by the kernel that does any table.
int eb_lookup_general(const void* weights, const void* scales, std::int64_t weight_stride, std::int64_t scale_stride,
                      std::int64_t table_rows, const std::int32_t* ids, std::int64_t tokens, int heads,
                      const std::int32_t* order, void* staging, std::int64_t grid_cap, void* stream) {
  return lookup_cuda(
      lookup_args(weights, scales, weight_stride, scale_stride, table_rows, ids, tokens, heads, order, staging),
      grid_cap, static_cast<cudaStream_t>(stream), nullptr, nullptr, LookupShape::general);
}

std::size_t eb_sort_scratch(std::int64_t rows) { return sort_rows_scratch_bytes(rows); }

int eb_sort(std::int64_t table_rows, const std::int32_t* ids, std::int64_t tokens, int heads, std::int32_t* order,
            void* scratch, std::size_t scratch_bytes, void* stream) {
  return sort_rows_cuda(lookup_args(nullptr, nullptr, 0, 0, table_rows, ids, tokens, heads, nullptr, nullptr), order,
                        static_cast<std::byte*>(scratch), scratch_bytes, static_cast<cudaStream_t>(stream));
}

int eb_hash(const std::int32_t* context, const std::int32_t* position, std::int64_t tokens, const void* layers,
            int layer_count, int columns, int heads_per_ngram, std::int32_t pad, std::int32_t* ids, void* stream) {
  HashArgs args;
  args.context = context;
  args.position = position;
  args.tokens = tokens;
  args.layers = static_cast<const HashLayer*>(layers);
  args.layer_count = layer_count;
  args.columns = columns;
  for (int c = 0; c < columns; ++c) args.column_ngram[c] = 2 + c / heads_per_ngram;
  args.pad_id = pad;
  args.ids = ids;
  return hash_cuda(args, static_cast<cudaStream_t>(stream));
}

int eb_gate(void* hidden, const void* kv, const void* q, const void* k, std::int64_t tokens, int copies, int dim,
            void* stream) {
  GateArgs args;
  args.hidden = static_cast<Bf16*>(hidden);
  args.kv = static_cast<const Bf16*>(kv);
  args.q = static_cast<const Bf16*>(q);
  args.k = static_cast<const Bf16*>(k);
  args.tokens = tokens;
  args.copies = copies;
  args.dim = dim;
  return gate_cuda(args, static_cast<cudaStream_t>(stream));
}

int eb_select(const void* src, void* dst, int sources, std::int64_t source_stride, std::int64_t token_stride,
              std::int64_t piece_bytes, std::int64_t tokens, void* stream) {
  SelectArgs args;
  args.src = static_cast<const std::byte*>(src);
  args.dst = static_cast<std::byte*>(dst);
  args.sources = sources;
  args.source_stride = source_stride;
  args.token_stride = token_stride;
  args.piece_bytes = piece_bytes;
  args.valid_tokens = tokens;
  args.tokens = tokens;
  args.dst_row_bytes = piece_bytes * sources;
  return select_cuda(args, static_cast<cudaStream_t>(stream));
}

}  // extern "C"
