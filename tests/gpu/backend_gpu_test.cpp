// The CUDA backend through its seam: registered mappings of every kind, events on the host's clock, segments as graphs.
// Skipped by name where there is no device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "harness/backend/cuda/cuda.h"
#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"
#include "placement/backing.h"

namespace eb::backend {
namespace {

constexpr Op kCopy{OpKind::copy, -1};
constexpr Op kLinear{OpKind::backbone, 0};

class GpuBackend : public testing::Test {
 protected:
  void SetUp() override {
    if (const cuda::Probe probe = cuda::probe(); probe.devices == 0) GTEST_SKIP() << probe.reason;
    backend_ = cuda::make_backend({});
    main_ = backend_->create_stream("main");
  }
  void put(std::byte* dst, const void* src, std::size_t bytes) {
    backend_->copy(main_, kCopy, dst, static_cast<const std::byte*>(src), bytes);
    backend_->synchronize();
  }
  template <typename T>
  std::vector<T> get(const void* src, std::size_t count) {
    std::vector<T> out(count);
    put(reinterpret_cast<std::byte*>(out.data()), src, count * sizeof(T));
    return out;
  }
  std::unique_ptr<Buffer> device(std::size_t bytes) { return backend_->allocate(bytes, MemoryKind::device, "test"); }

  std::unique_ptr<Backend> backend_;
  StreamId main_ = 0;
};

TEST_F(GpuBackend, StatesWhoTheDeviceIs) {
  const DeviceInfo& info = backend_->device();
  EXPECT_EQ(info.backend, "cuda");
  EXPECT_GT(info.units, 0);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_FALSE(info.units_are_threads);
  EXPECT_THAT(info.uuid, testing::MatchesRegex("GPU-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+"));
  EXPECT_FALSE(info.cuda_runtime.empty());
  EXPECT_GT(info.clock_error_ns, 0);
  EXPECT_LT(info.clock_error_ns, 1'000'000);
}

TEST_F(GpuBackend, RefusesADeviceThatIsNotThere) {
  cuda::Options options;
  options.device = 1000;
  try {
    (void)cuda::make_backend(options);
    FAIL() << "device 1000 was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::skipped);
    EXPECT_THAT(error.what(), testing::HasSubstr("device 1000"));
  }
}

TEST_F(GpuBackend, OutOfMemoryNamesWhatWasAskedFor) {
  try {
    (void)backend_->allocate(std::size_t{1} << 50, MemoryKind::device, "the impossible");
    FAIL() << "a pebibyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::failure);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("the impossible"), testing::HasSubstr("out of memory")));
  }
  EXPECT_NO_THROW((void)device(1024));  // the error does not stick
}

// A buffer is zeroed before it is given out, not some time later.
TEST_F(GpuBackend, NewMemoryStaysAsWritten) {
  constexpr std::size_t kBytes = std::size_t{512} << 20;
  constexpr std::size_t kEnd = 4096;
  for (int trial = 0; trial < 4; ++trial) {
    const auto buffer = device(kBytes);
    backend_->fill(main_, {OpKind::fill, -1}, buffer->data() + kBytes - kEnd, 0x5A, kEnd);
    backend_->synchronize();
    const auto seen = get<std::byte>(buffer->data() + kBytes - kEnd, kEnd);
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](std::byte b) { return b == std::byte{0x5A}; }));
  }
}

// The device reads what the host writes after registration: the same pages, no copy.
TEST_F(GpuBackend, RegisteredMappingsAreTheSamePages) {
  constexpr std::size_t kBytes = 3 << 20;
  const auto look = [&](std::byte* address) {
    std::iota(reinterpret_cast<std::uint32_t*>(address), reinterpret_cast<std::uint32_t*>(address + kBytes), 7U);
    const auto registration = backend_->register_table(address, kBytes);
    std::memset(address + 4096, 0x5A, 4096);
    const auto seen = get<std::byte>(registration->device_address(), kBytes);
    EXPECT_EQ(std::memcmp(seen.data(), address, kBytes), 0);
  };
  for (const plan::Backing kind : {plan::Backing::shm, plan::Backing::memfd}) {
    const UniqueFd fd = placement::create_backing(kind, kBytes);
    const Mapping mapping = Mapping::shared(fd.get(), kBytes, "test");
    look(mapping.data());
  }
  const Mapping anonymous = placement::map_private(kBytes);
  look(anonymous.data());
}

TEST_F(GpuBackend, EventsLieOnTheHostsClock) {
  const std::int64_t before = now_ns();
  const EventId first = backend_->new_event();
  const EventId second = backend_->new_event();
  backend_->record(main_, first);
  backend_->busy(main_, {OpKind::inject, -1}, 2'000'000);
  backend_->record(main_, second);
  backend_->synchronize();
  const std::int64_t after = now_ns();
  const std::int64_t error = backend_->device().clock_error_ns + 2000;  // and CUDA's tick
  EXPECT_GE(backend_->times(first).device_ns, before - error);
  EXPECT_LE(backend_->times(second).device_ns, after + error);
  EXPECT_GE(backend_->times(second).device_ns - backend_->times(first).device_ns, 1'900'000);
  EXPECT_GE(backend_->times(first).enqueue_ns, before);
}

// The driver's memory by the way of a run: made, passed on by descriptor, mapped, read by the device.
TEST_F(GpuBackend, ReadsTheDriversMemoryThroughDescriptors) {
  DriverMemory* driver = nullptr;
  try {
    driver = backend_->driver_memory();
  } catch (const Error& error) {
    if (error.exit() == Exit::skipped) GTEST_SKIP() << error.what();
    throw;
  }
  ASSERT_NE(driver, nullptr);
  std::size_t granularity = 0;
  ASSERT_EQ(driver->granularity(0, &granularity), 0);
  EXPECT_EQ(granularity % (std::size_t{2} << 20), 0U);
  const std::pair<int, int> node0[] = {{0, 1}};
  const auto pieces = plan_numa_pieces(5 * granularity, granularity, node0);
  ASSERT_EQ(pieces.size(), 5U);
  const auto leader = NumaMemory::create(*driver, pieces);
  const auto reader = NumaMemory::import(*driver, pieces, leader->export_descriptors());
  leader->map();
  reader->map();
  EXPECT_NE(leader->data(), reader->data());
  auto* words = reinterpret_cast<std::uint32_t*>(leader->data());
  std::iota(words, words + leader->size() / 4, 11U);
  EXPECT_EQ(std::memcmp(leader->data(), reader->data(), leader->size()), 0);
  const auto registration = backend_->register_numa(*reader);
  // Through device memory, by a kernel: a copy could be made by the host.
  const auto target = device(reader->size());
  kernels::SelectArgs select;
  select.src = registration->device_address();
  select.dst = target->data();
  select.token_stride = select.piece_bytes = select.dst_row_bytes = 4096;
  select.tokens = select.valid_tokens = static_cast<std::int64_t>(reader->size() / 4096);
  backend_->select(main_, kCopy, select);
  backend_->synchronize();
  const auto seen = get<std::byte>(target->data(), reader->size());
  EXPECT_EQ(std::memcmp(seen.data(), leader->data(), seen.size()), 0);
}

TEST_F(GpuBackend, ARefusalOfTheDriverNamesTheNode) {
  DriverMemory* driver = nullptr;
  try {
    driver = backend_->driver_memory();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  try {
    (void)NumaMemory::create(*driver, {{0, std::size_t{2} << 20}, {0, std::size_t{1} << 50}});
    FAIL() << "a pebibyte of host memory was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::failure);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("allocate piece 1 of 2"),
                                             testing::HasSubstr("NUMA node 0"), testing::HasSubstr("CUDA_ERROR")));
  }
}

// A lookup says on which SMs it ran, and its rows are those of the kernel that does not say it.
TEST_F(GpuBackend, ObservedLookupsCountTheirSms) {
  constexpr std::int64_t kRows = 4096;
  constexpr std::int64_t kTokens = 400;
  std::vector<std::byte> rows(kRows * 264);
  std::mt19937 random(3);
  for (std::byte& one : rows) one = static_cast<std::byte>(random() % 120);
  const auto table = device(rows.size());
  put(table->data(), rows.data(), rows.size());
  std::vector<std::int32_t> ids(kTokens);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % kRows);
  const auto ids_there = device(ids.size() * 4);
  put(ids_there->data(), ids.data(), ids.size() * 4);
  const auto plain = device(kTokens * 512);
  const auto watched = device(kTokens * 512);
  kernels::LookupArgs args;
  args.table = {table->data(), table->data() + kRows * 256, 256, 8, 0, kRows, 256, 32};
  args.ids = ids_there->as<std::int32_t>();
  args.id_token_stride = 1;
  args.tokens = kTokens;
  args.columns = args.heads = 1;
  for (const bool host_table : {true, false}) {
    args.table.in_device_memory = !host_table;  // both shapes of the kernel
    args.staging = plain->as<Bf16>();
    backend_->lookup(main_, {OpKind::lookup, 14}, args, 10);
    backend_->begin_observation({false, false, true});
    args.staging = watched->as<Bf16>();
    EXPECT_EQ(backend_->lookup(main_, {OpKind::lookup, 14}, args, 10), 10);
    const Observed seen = backend_->end_observation();
    ASSERT_EQ(seen.lookup_units.count(14), 1U);
    EXPECT_GE(seen.lookup_units.at(14), 1);
    EXPECT_LE(seen.lookup_units.at(14), 10);
    EXPECT_FALSE(seen.no_spans.empty());
    EXPECT_EQ(get<std::byte>(plain->data(), plain->size()), get<std::byte>(watched->data(), watched->size()));
  }
}

TEST_F(GpuBackend, SpansAreTheKernelsOnTheHostsClock) {
  const auto buffer = device(1 << 20);
  backend_->begin_observation({true, true, false});
  const std::int64_t before = now_ns();
  backend_->fill(main_, {OpKind::fill, 3}, buffer->data(), 1, buffer->size());
  backend_->busy(main_, {OpKind::inject, 7}, 2'000'000);
  backend_->synchronize();
  const std::int64_t after = now_ns();
  const Observed seen = backend_->end_observation();
  if (!seen.no_spans.empty()) GTEST_SKIP() << seen.no_spans;
  EXPECT_EQ(seen.dropped, 0);
  const auto found = std::find_if(seen.spans.begin(), seen.spans.end(),
                                  [](const KernelSpan& span) { return span.op && span.op->kind == OpKind::inject; });
  ASSERT_NE(found, seen.spans.end());
  EXPECT_EQ(found->op->layer, 7);
  EXPECT_THAT(found->name, testing::HasSubstr("busy"));
  EXPECT_EQ(found->grid, 1);
  EXPECT_GE(found->end_ns - found->start_ns, 1'900'000);
  EXPECT_GE(found->start_ns, before - seen.clock_error_ns);
  EXPECT_LE(found->end_ns, after + seen.clock_error_ns);
  EXPECT_LT(seen.clock_error_ns, 1'000'000);
  EXPECT_TRUE(std::any_of(seen.spans.begin(), seen.spans.end(), [](const KernelSpan& span) {
    return span.name == "fill" && span.op && span.op->layer == 3;
  }));
}

// A product that comes again is launched without cuBLASLt: the same bits, with what x and w hold by then.
TEST_F(GpuBackend, AProductThatComesAgainHasTheBitsOfItsFirstTime) {
  std::mt19937 random(9);
  const auto random_values = [&](std::int64_t count) {
    std::vector<Bf16> values(static_cast<std::size_t>(count));
    for (Bf16& one : values) one.bits = static_cast<std::uint16_t>(0x3800 + random() % 0x0800 + (random() % 2 << 15));
    return values;
  };
  // Shapes that cuBLASLt does by one kernel, by two (split k), and with a fill before, on an H200.
  const std::array<std::int64_t, 3> shapes[] = {
      {1, 640, 512}, {64, 5120, 8192}, {576, 1024, 512}, {33, 257 * 8, 1000}, {576, 39040, 5120}};
  for (const auto& [m, n, k] : shapes) {
    const auto matrix = backend_->upload_matrix(random_values(n * k), n, k);
    const auto x = device(static_cast<std::size_t>(m * k) * 2);
    const auto first = device(static_cast<std::size_t>(m * n) * 2);
    const auto again = device(static_cast<std::size_t>(m * n) * 2);
    for (const float scale : {0.0F, 0.5F}) {
      const auto run = [&](const std::unique_ptr<Buffer>& y) {
        backend_->fill(main_, {OpKind::fill, -1}, y->data(), scale == 0 ? 0xFF : 0x3C, y->size());
        backend_->linear(main_, kLinear, {x->as<Bf16>(), k, matrix.get(), y->as<Bf16>(), n, m, scale});
        return get<std::uint16_t>(y->data(), static_cast<std::size_t>(m * n));
      };
      const auto old_x = random_values(m * k);
      put(x->data(), old_x.data(), old_x.size() * 2);
      (void)run(again);
      const auto new_x = random_values(m * k);
      put(x->data(), new_x.data(), new_x.size() * 2);
      const auto wanted = run(first);  // by cuBLASLt
      EXPECT_EQ(run(again), wanted) << m << " x " << n << " x " << k << ", scale " << scale;
      EXPECT_EQ(run(first), wanted) << m << " x " << n << " x " << k << ", scale " << scale;
    }
  }
}

class GpuSegments : public GpuBackend {
 protected:
  static constexpr std::int64_t kTokens = 32;
  static constexpr std::int64_t kWidth = 256;

  void SetUp() override {
    GpuBackend::SetUp();
    if (IsSkipped()) return;
    std::mt19937 random(5);
    std::vector<Bf16> weights(kWidth * kWidth);
    for (Bf16& one : weights) one.bits = static_cast<std::uint16_t>(0x3800 + random() % 0x0400);
    matrix_ = backend_->upload_matrix(weights, kWidth, kWidth);
    for (auto* buffer : {&x_, &y_, &other_}) *buffer = device(kTokens * kWidth * 2);
  }
  void fill_input(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<Bf16> values(kTokens * kWidth);
    for (Bf16& one : values) one.bits = static_cast<std::uint16_t>(0x3C00 + random() % 0x0400);
    put(x_->data(), values.data(), values.size() * 2);
  }
  void work(Bf16* y) {
    LinearArgs args{x_->as<Bf16>(), kWidth, matrix_.get(), y, kWidth, kTokens, 0};
    backend_->linear(main_, kLinear, args);
    args.accumulate_scale = 0.5F;
    backend_->linear(main_, kLinear, args);
  }
  std::vector<std::uint16_t> result(const std::unique_ptr<Buffer>& buffer) {
    return get<std::uint16_t>(buffer->data(), kTokens * kWidth);
  }

  std::unique_ptr<Matrix> matrix_;
  std::unique_ptr<Buffer> x_, y_, other_;
};

TEST_F(GpuSegments, ReplaysEqualPlainWorkWithFreshInputs) {
  for (std::uint32_t visit = 0; visit < 6; ++visit) {
    fill_input(visit);
    work(other_->as<Bf16>());
    const auto plain = result(other_);
    backend_->fill(main_, {OpKind::fill, -1}, y_->data(), 0xFF, y_->size());
    const std::int64_t before = *backend_->launches();
    const EventId outside = backend_->new_event();
    const EventId inside = backend_->new_event();
    const EventId after = backend_->new_event();
    backend_->record(main_, outside);
    backend_->begin_segment(main_, {0, static_cast<std::uint16_t>(visit % 2), 3});
    work(y_->as<Bf16>());
    backend_->record(main_, inside);
    backend_->end_segment(main_);
    backend_->record(main_, after);
    // A product is one kernel or more; a graph is one launch.
    if (visit < 2) {
      EXPECT_GE(*backend_->launches() - before, 2) << "visit " << visit;
    } else {
      EXPECT_EQ(*backend_->launches() - before, 1) << "visit " << visit;
    }
    backend_->synchronize();
    EXPECT_EQ(result(y_), plain) << "visit " << visit;
    // Its own events, in order, each time.
    EXPECT_LE(backend_->times(outside).device_ns, backend_->times(inside).device_ns);
    EXPECT_LE(backend_->times(inside).device_ns, backend_->times(after).device_ns + 1000);
    EXPECT_GE(backend_->times(inside).enqueue_ns, backend_->times(outside).enqueue_ns);
  }
}

TEST_F(GpuSegments, OtherWorkUnderTheSameKeyIsAnError) {
  fill_input(1);
  for (int visit = 0; visit < 3; ++visit) {
    backend_->begin_segment(main_, {1, 0, 0});
    work(y_->as<Bf16>());
    backend_->end_segment(main_);
  }
  backend_->begin_segment(main_, {1, 0, 0});
  work(other_->as<Bf16>());
  EXPECT_THROW(backend_->end_segment(main_), Error);
}

TEST_F(GpuSegments, DroppedSegmentsAreCapturedAnew) {
  fill_input(2);
  const auto visit = [&](Bf16* y) {
    backend_->begin_segment(main_, {2, 0, 0});
    work(y);
    backend_->end_segment(main_);
    backend_->synchronize();
  };
  for (int i = 0; i < 3; ++i) visit(y_->as<Bf16>());
  backend_->drop_segments();
  for (int i = 0; i < 3; ++i) visit(other_->as<Bf16>());
  EXPECT_EQ(result(other_), result(y_));
}

TEST_F(GpuSegments, NothingWaitsInside) {
  const StreamId other = backend_->create_stream("other");
  const EventId event = backend_->new_event();
  backend_->record(other, event);
  backend_->begin_segment(main_, {3, 0, 0});
  EXPECT_THROW(backend_->wait(main_, event), Error);
  EXPECT_NO_THROW(backend_->wait(other, event));
  backend_->end_segment(main_);
}

}  // namespace
}  // namespace eb::backend
