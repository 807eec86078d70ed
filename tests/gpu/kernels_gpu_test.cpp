// CUDA kernels against their CPU twins on random shapes: bit for bit where the arithmetic is exact (hash, lookup, bare
// gather, sort, select), within a stated bound for the gate. Skipped by name where there is no device.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda.h"

namespace eb::kernels {
namespace {

// Device memory of a test.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(std::max<std::size_t>(bytes, 16)) {
    if (cudaMalloc(&data_, bytes_) != cudaSuccess) data_ = nullptr;
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    ASSERT_LE(values.size() * sizeof(T), bytes_);
    ASSERT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyDefault), cudaSuccess);
  }
  template <typename T>
  [[nodiscard]] std::vector<T> get(std::size_t count) const {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count * sizeof(T), cudaMemcpyDefault), cudaSuccess);
    return values;
  }
  void poison() { cudaMemset(data_, 0xFF, bytes_); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no CUDA device";
  }
  static void finish(cudaError_t launched) {
    ASSERT_EQ(launched, cudaSuccess) << cudaGetErrorString(launched);
    const cudaError_t done = cudaDeviceSynchronize();
    ASSERT_EQ(done, cudaSuccess) << cudaGetErrorString(done);
  }
  std::mt19937_64 random_{20251};
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
};

struct Table {
  std::vector<std::uint8_t> bytes;
  TableView host;    // into `bytes`
  TableView device;  // into the memory given
};

// Random bytes: all E4M3 codes with NaN, all scales with 0 and 255.
Table make_table(std::mt19937_64& random, RowFormat format, int dim, std::int64_t rows, std::int64_t first_row,
                 bool interleaved, std::byte* device) {
  Table table;
  const std::int64_t weights = format == RowFormat::bf16 ? dim * 2 : dim;
  const std::int64_t scales = format == RowFormat::bf16 ? 0 : dim / 32;
  const std::int64_t stride = interleaved ? (weights + scales + 15) / 16 * 16 : weights;
  table.bytes.resize(static_cast<std::size_t>(interleaved ? rows * stride : rows * (weights + scales)));
  for (auto& byte : table.bytes) byte = static_cast<std::uint8_t>(random());
  const auto view = [&](const std::byte* base) {
    TableView v;
    v.weights = base;
    v.scales = scales == 0 ? nullptr : base + (interleaved ? weights : rows * weights);
    v.weight_stride = stride;
    v.scale_stride = interleaved ? stride : scales;
    v.first_row = first_row;
    v.rows = rows;
    v.dim = dim;
    v.block = scales == 0 ? 0 : 32;
    v.format = format;
    return v;
  };
  table.host = view(reinterpret_cast<const std::byte*>(table.bytes.data()));
  table.device = view(device);
  return table;
}

struct Shape {
  RowFormat format;
  int dim;
  bool interleaved;
  bool device_memory;
};

class GpuLookup : public Gpu, public testing::WithParamInterface<Shape> {};

TEST_P(GpuLookup, EqualsTheCpuTwin) {
  const Shape shape = GetParam();
  for (int trial = 0; trial < 24; ++trial) {
    const std::int64_t rows = pick(1, 3000);
    const std::int64_t first_row = pick(0, 1 << 20);
    void* pinned = nullptr;
    Memory near(rows * shape.dim * 3 + 64);
    ASSERT_EQ(cudaMallocHost(&pinned, static_cast<std::size_t>(rows * shape.dim * 3 + 64)), cudaSuccess);
    auto* base = shape.device_memory ? near.as<std::byte>() : static_cast<std::byte*>(pinned);
    Table table = make_table(random_, shape.format, shape.dim, rows, first_row, shape.interleaved, base);
    table.device.in_device_memory = shape.device_memory;
    ASSERT_EQ(cudaMemcpy(base, table.bytes.data(), table.bytes.size(), cudaMemcpyDefault), cudaSuccess);

    LookupArgs host;
    host.table = table.host;
    host.tokens = trial == 0 ? 0 : pick(1, trial % 4 == 0 ? 900 : 20);
    host.heads = static_cast<std::int32_t>(pick(1, 24));
    host.columns = static_cast<std::int32_t>(pick(1, host.heads));
    host.id_offset = pick(0, 5);
    host.id_token_stride = host.id_offset + host.columns + pick(0, 9);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(host.tokens * host.id_token_stride + host.id_offset + 64));
    for (auto& id : ids) {
      id = static_cast<std::int32_t>(pick(first_row - 3, first_row + rows + 2));
      if (pick(0, 9) == 0) id = -1;
    }
    host.ids = ids.data();
    std::vector<Bf16> expected(static_cast<std::size_t>(std::max<std::int64_t>(host.rows(), 1) * shape.dim));
    host.staging = expected.data();
    lookup_program(host, 0, 1);

    Memory device_ids(ids.size() * 4);
    device_ids.put(ids);
    Memory staging(expected.size() * 2);
    LookupArgs device = host;
    device.table = table.device;
    device.ids = device_ids.as<std::int32_t>();
    device.staging = staging.as<Bf16>();
    std::vector<std::uint32_t> expected_sums(static_cast<std::size_t>(host.rows()));
    gather_rows_program({host, expected_sums.data()}, 0, 1);
    Memory sums(expected_sums.size() * 4);
    for (const bool ordered : {false, true}) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(host.rows()));
      Memory device_order(order.size() * 4);
      if (ordered) {
        sort_rows(host, order.data());
        const std::size_t bytes = sort_rows_scratch_bytes(device.rows());
        Memory scratch(bytes);
        finish(sort_rows_cuda(device, device_order.as<std::int32_t>(), scratch.as<std::byte>(), bytes, nullptr));
        ASSERT_EQ(device_order.get<std::int32_t>(order.size()), order) << "rows " << host.rows();
        device.order = device_order.as<std::int32_t>();
      }
      // Few tiles, a tile a program, and several: each its own kernel for some tables. The general one does all.
      for (const auto& [cap, kernel] :
           {std::pair{1, LookupShape::best}, std::pair{3, LookupShape::best}, std::pair{66, LookupShape::best},
            std::pair{2000, LookupShape::best}, std::pair{66, LookupShape::general}}) {
        staging.poison();
        std::int64_t grid = -1;
        finish(lookup_cuda(device, cap, nullptr, &grid, nullptr, kernel));
        ASSERT_EQ(grid, std::min<std::int64_t>(cap, host.tiles()));
        const auto found = staging.get<Bf16>(static_cast<std::size_t>(host.rows() * shape.dim));
        for (std::size_t i = 0; i < found.size(); ++i) {
          ASSERT_EQ(found[i].bits, expected[i].bits)
              << "row " << i / static_cast<std::size_t>(shape.dim) << " element "
              << i % static_cast<std::size_t>(shape.dim) << " cap " << cap << " ordered " << ordered;
        }
        sums.poison();
        finish(gather_rows_cuda({device, sums.as<std::uint32_t>()}, cap, nullptr, &grid));
        ASSERT_EQ(grid, std::min<std::int64_t>(cap, host.tiles()));
        ASSERT_EQ(sums.get<std::uint32_t>(expected_sums.size()), expected_sums)
            << "bare gather, cap " << cap << " ordered " << ordered;
      }
      device.order = nullptr;
    }
    cudaFreeHost(pinned);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuLookup,
    testing::Values(Shape{RowFormat::e4m3_ue8m0, 256, false, false}, Shape{RowFormat::e4m3_ue8m0, 256, false, true},
                    Shape{RowFormat::e4m3_ue8m0, 256, true, false}, Shape{RowFormat::e4m3_ue8m0, 256, true, true},
                    Shape{RowFormat::e4m3_ue8m0, 64, false, false}, Shape{RowFormat::e4m3_ue8m0, 64, true, false},
                    Shape{RowFormat::e4m3_ue8m0, 512, false, true}, Shape{RowFormat::bf16, 128, false, false},
                    Shape{RowFormat::bf16, 64, false, true}));

TEST_F(Gpu, SortOfManyRowsEqualsTheCpuTwin) {
  for (const std::int64_t tokens : {1, 21, 22, 43, 85, 86, 170, 171, 342, 1000, 8192}) {
    LookupArgs host;
    host.table.rows = 384'006'168;
    host.tokens = tokens;
    host.heads = host.columns = 24;
    host.id_token_stride = 24;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * 24));
    for (auto& id : ids) id = static_cast<std::int32_t>(pick(-2, 384'006'170) % (tokens % 2 == 0 ? 1000 : 400'000'000));
    host.ids = ids.data();
    std::vector<std::int32_t> order(ids.size());
    sort_rows(host, order.data());
    Memory device_ids(ids.size() * 4);
    Memory device_order(ids.size() * 4);
    device_ids.put(ids);
    LookupArgs device = host;
    device.ids = device_ids.as<std::int32_t>();
    const std::size_t bytes = sort_rows_scratch_bytes(device.rows());
    Memory scratch(bytes);
    finish(sort_rows_cuda(device, device_order.as<std::int32_t>(), scratch.as<std::byte>(), bytes, nullptr));
    ASSERT_EQ(device_order.get<std::int32_t>(order.size()), order) << tokens << " tokens";
  }
}

TEST_F(Gpu, HashEqualsTheCpuTwin) {
  for (int trial = 0; trial < 30; ++trial) {
    HashArgs host;
    host.layer_count = static_cast<int>(pick(1, 3));
    const auto heads = static_cast<int>(pick(1, 8));
    const auto sizes = static_cast<int>(pick(1, 3));
    host.columns = heads * sizes;
    for (int c = 0; c < host.columns; ++c) host.column_ngram[c] = 2 + c / heads;
    std::vector<HashLayer> layers(static_cast<std::size_t>(host.layer_count));
    for (auto& layer : layers) {
      for (auto& m : layer.multipliers) m = pick(0, (std::int64_t{1} << 62) / 99092) * 2 + 1;
      for (int c = 0; c < host.columns; ++c) {
        layer.primes[c] = pick(1, 16'000'500);
        layer.offsets[c] = pick(0, 300'000'000);
      }
    }
    host.tokens = pick(0, 700);
    host.pad_id = 2;
    std::vector<std::int32_t> context(static_cast<std::size_t>(host.tokens + kLookBack));
    for (auto& token : context) token = static_cast<std::int32_t>(pick(0, 9) == 0 ? -1 : pick(0, 99091));
    std::vector<std::int32_t> position(static_cast<std::size_t>(host.tokens));
    for (std::size_t i = 0; i < position.size(); ++i) position[i] = static_cast<std::int32_t>(i) + kLookBack;
    host.context = context.data();
    host.position = position.data();
    host.layers = layers.data();
    std::vector<std::int32_t> expected(static_cast<std::size_t>(host.tokens * host.layer_count * host.columns));
    host.ids = expected.data();
    hash_tokens(host, 0, host.tokens);

    Memory device_context(context.size() * 4);
    Memory device_position(position.size() * 4);
    Memory device_layers(layers.size() * sizeof(HashLayer));
    Memory device_ids(expected.size() * 4);
    device_context.put(context);
    device_position.put(position);
    device_layers.put(layers);
    HashArgs device = host;
    device.context = device_context.as<std::int32_t>();
    device.position = device_position.as<std::int32_t>();
    device.layers = device_layers.as<HashLayer>();
    device.ids = device_ids.as<std::int32_t>();
    finish(hash_cuda(device, nullptr));
    ASSERT_EQ(device_ids.get<std::int32_t>(expected.size()), expected);
  }
}

TEST_F(Gpu, SelectEqualsTheCpuTwin) {
  for (int trial = 0; trial < 40; ++trial) {
    SelectArgs host;
    const std::int64_t unit = trial % 2 == 0 ? 16 : 2;
    host.sources = static_cast<int>(pick(1, 4));
    host.piece_bytes = pick(1, 40) * unit;
    host.token_stride = host.piece_bytes + pick(0, 3) * unit;
    host.first_token = pick(0, 5);
    host.valid_tokens = pick(0, 30);
    host.tokens = host.valid_tokens + pick(0, 4);
    host.source_stride = (host.first_token + host.valid_tokens + pick(0, 3)) * host.token_stride;
    host.dst_row_bytes = std::max<std::int64_t>(unit, host.piece_bytes * host.sources - pick(0, 1) * unit);
    std::vector<std::uint8_t> src(static_cast<std::size_t>(host.source_stride * host.sources + 64));
    for (auto& byte : src) byte = static_cast<std::uint8_t>(random_());
    std::vector<std::uint8_t> expected(static_cast<std::size_t>(host.tokens * host.dst_row_bytes));
    host.src = reinterpret_cast<const std::byte*>(src.data());
    host.dst = reinterpret_cast<std::byte*>(expected.data());
    select_rows(host);
    Memory device_src(src.size());
    Memory device_dst(expected.size());
    device_src.put(src);
    device_dst.poison();
    SelectArgs device = host;
    device.src = device_src.as<std::byte>();
    device.dst = device_dst.as<std::byte>();
    finish(select_cuda(device, nullptr));
    ASSERT_EQ(device_dst.get<std::uint8_t>(expected.size()), expected);
  }
}

// Bound: both round sums of `dim` float32 terms in their own order, which moves the gate by at most about dim * 2^-24
// of its argument; after the one rounding to BF16 a result may land on the neighbouring value.
TEST_F(Gpu, GateIsWithinOneBf16StepOfTheCpuTwin) {
  struct Size {
    int copies;
    int dim;
  };
  for (const Size size :
       {Size{4, 5120}, Size{4, 512}, Size{2, 64}, Size{1, 8}, Size{3, 1024}, Size{8, 2048}, Size{4, 8192}}) {
    GateArgs host;
    host.copies = size.copies;
    host.dim = size.dim;
    host.tokens = 37;
    std::normal_distribution<float> normal;
    const auto values = [&](std::int64_t count) {
      std::vector<Bf16> out(static_cast<std::size_t>(count));
      for (auto& value : out) value = to_bf16(normal(random_));
      return out;
    };
    std::vector<Bf16> hidden = values(host.tokens * size.copies * size.dim);
    const std::vector<Bf16> kv = values(host.tokens * (size.copies + 1) * size.dim);
    const std::vector<Bf16> q = values(std::int64_t{size.copies} * size.dim);
    const std::vector<Bf16> k = values(std::int64_t{size.copies} * size.dim);
    std::vector<std::uint8_t> masked(static_cast<std::size_t>(host.tokens));
    masked[3] = masked[36] = 1;
    Memory device_hidden(hidden.size() * 2);
    Memory device_kv(kv.size() * 2);
    Memory device_q(q.size() * 2);
    Memory device_k(k.size() * 2);
    Memory device_masked(masked.size());
    device_hidden.put(hidden);
    device_kv.put(kv);
    device_q.put(q);
    device_k.put(k);
    device_masked.put(masked);
    GateArgs device = host;
    device.hidden = device_hidden.as<Bf16>();
    device.kv = device_kv.as<Bf16>();
    device.q = device_q.as<Bf16>();
    device.k = device_k.as<Bf16>();
    device.masked = device_masked.as<std::uint8_t>();
    const std::vector<Bf16> before = hidden;
    host.hidden = hidden.data();
    host.kv = kv.data();
    host.q = q.data();
    host.k = k.data();
    host.masked = masked.data();
    gate_tokens(host, 0, host.tokens);
    finish(gate_cuda(device, nullptr));
    const auto found = device_hidden.get<Bf16>(hidden.size());
    std::size_t changed = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const float want = to_float(hidden[i]);
      ASSERT_NEAR(to_float(found[i]), want, std::fabs(want) * 0x1p-7F + 1e-6F)
          << size.copies << " x " << size.dim << " at " << i;
      changed += found[i].bits != before[i].bits ? 1 : 0;
    }
    EXPECT_GT(changed, found.size() / 2);
  }
}

}  // namespace
}  // namespace eb::kernels
