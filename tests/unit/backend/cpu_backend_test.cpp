// Streams, events and operations of the CPU backend.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/gemm.h"
#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"
#include "tests/unit/error_of.h"

namespace eb::backend {
namespace {

using eb::test::error_of;
using testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr Op kInject{OpKind::inject};

std::byte* bytes_of(void* address) { return static_cast<std::byte*>(address); }
const std::byte* bytes_of(const void* address) { return static_cast<const std::byte*>(address); }

std::unique_ptr<Backend> make(int workers = 2) {
  CpuOptions options;
  options.workers = workers;
  return make_cpu_backend(options);
}

std::size_t thread_count() {
  std::size_t count = 0;
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(tasks)) count += entry->d_name[0] != '.';
  ::closedir(tasks);
  return count;
}

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::int64_t>(page_bytes());
}

TEST(CpuBackend, DescribesItself) {
  CpuOptions options;
  options.workers = 3;
  options.numa_node = 1;
  const auto backend = make_cpu_backend(options);
  EXPECT_EQ(backend->device().backend, "cpu");
  EXPECT_EQ(backend->device().units, 3);
  EXPECT_EQ(backend->device().numa_node, 1);
  EXPECT_FALSE(backend->device().emulated_time);
  options.workers = 0;
  EXPECT_THROW((void)make_cpu_backend(options), Error);
}

// 20,000 read-modify-writes in one stream, more than a block of the queue holds: any reordering or loss shows.
TEST(CpuBackend, AStreamKeepsItsOrder) {
  const auto backend = make();
  const StreamId stream = backend->create_stream("main");
  constexpr int kSteps = 20'000;
  std::vector<std::uint8_t> values(kSteps + 1, 0xFF);
  values[0] = 7;
  for (int i = 0; i < kSteps; ++i) {
    backend->copy(stream, {OpKind::copy}, bytes_of(&values[static_cast<std::size_t>(i) + 1]),
                  bytes_of(&values[static_cast<std::size_t>(i)]), 1);
  }
  backend->synchronize();
  EXPECT_EQ(values[kSteps], 7);
}

TEST(CpuBackend, StreamsOverlapInTime) {
  const auto backend = make();
  const StreamId one = backend->create_stream("one");
  const StreamId two = backend->create_stream("two");
  EventId events[4];
  for (EventId& event : events) event = backend->new_event();
  backend->record(one, events[0]);
  backend->busy(one, kInject, 40'000'000);
  backend->record(one, events[1]);
  backend->record(two, events[2]);
  backend->busy(two, kInject, 40'000'000);
  backend->record(two, events[3]);
  backend->synchronize();
  const auto at = [&](int i) { return backend->times(events[i]).device_ns; };
  EXPECT_GE(at(1) - at(0), 40'000'000);
  EXPECT_GE(at(3) - at(2), 40'000'000);
  EXPECT_LT(at(0), at(3));
  EXPECT_LT(at(2), at(1));
  const std::int64_t together = std::max(at(1), at(3)) - std::min(at(0), at(2));
  EXPECT_LT(together, (at(1) - at(0)) + (at(3) - at(2)));
}

TEST(CpuBackend, NothingAfterAWaitStartsBeforeItsEvent) {
  const auto backend = make();
  const StreamId main = backend->create_stream("main");
  const StreamId side = backend->create_stream("side");
  for (int round = 0; round < 50; ++round) {
    const EventId ready = backend->new_event();
    const EventId resumed = backend->new_event();
    std::uint32_t value = 0;
    std::uint32_t copy = 0;
    const std::uint32_t source = 0x12345678;
    if (round % 2 == 0) backend->busy(side, kInject, 300'000);
    backend->copy(side, {OpKind::copy}, bytes_of(&value), bytes_of(&source), 4);
    backend->record(side, ready);
    backend->wait(main, ready);
    backend->record(main, resumed);
    backend->copy(main, {OpKind::copy}, bytes_of(&copy), bytes_of(&value), 4);
    backend->synchronize();
    EXPECT_EQ(copy, source);
    EXPECT_GE(backend->times(resumed).device_ns, backend->times(ready).device_ns);
  }
}

// A step's shape: the side stream waits for a release of the main stream, and the main stream for the side's result.
TEST(CpuBackend, ReleaseHoldsBackTheOtherStream) {
  const auto backend = make();
  const StreamId main = backend->create_stream("main");
  const StreamId side = backend->create_stream("side");
  const EventId before = backend->new_event();
  const EventId release = backend->new_event();
  const EventId start = backend->new_event();
  const EventId done = backend->new_event();
  const EventId resumed = backend->new_event();
  backend->record(main, before);
  backend->busy(main, {OpKind::backbone, 0}, 20'000'000);
  backend->record(main, release);
  backend->wait(side, release);
  backend->record(side, start);
  backend->busy(side, {OpKind::lookup, 1}, 1'000'000);
  backend->record(side, done);
  backend->wait(main, done);
  backend->record(main, resumed);
  backend->synchronize();
  EXPECT_GE(backend->times(start).device_ns, backend->times(release).device_ns);
  EXPECT_GE(backend->times(resumed).device_ns, backend->times(done).device_ns);
  EXPECT_GE(backend->times(start).device_ns, backend->times(before).device_ns + 20'000'000);
}

TEST(CpuBackend, EventTimesRiseWithinAStreamAndFollowTheirCalls) {
  const auto backend = make();
  const StreamId stream = backend->create_stream("main");
  const std::int64_t before_ns = now_ns();
  std::vector<EventId> events;
  for (int i = 0; i < 1000; ++i) {
    events.push_back(backend->new_event());
    backend->record(stream, events.back());
  }
  backend->host_wait(events.back());
  const std::int64_t after_ns = now_ns();
  std::int64_t enqueue_ns = before_ns;
  std::int64_t device_ns = before_ns;
  for (const EventId event : events) {
    const EventTimes times = backend->times(event);
    EXPECT_GE(times.enqueue_ns, enqueue_ns);
    EXPECT_GE(times.device_ns, device_ns);
    EXPECT_GE(times.device_ns, times.enqueue_ns);
    EXPECT_LE(times.device_ns, after_ns);
    enqueue_ns = times.enqueue_ns;
    device_ns = times.device_ns;
  }
}

TEST(CpuBackend, MisuseOfEventsIsNamed) {
  const auto backend = make();
  const StreamId stream = backend->create_stream("main");
  const EventId event = backend->new_event();
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->wait(stream, event); }), HasSubstr("never recorded"));
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->host_wait(event); }), HasSubstr("never recorded"));
  EXPECT_THAT(error_of(Exit::failure, [&] { (void)backend->times(event); }), HasSubstr("has not completed"));
  backend->record(stream, event);
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->record(stream, event); }), HasSubstr("twice"));
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->record(stream, event + 1); }), HasSubstr("only 1 events"));
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->record(stream + 1, backend->new_event()); }),
              HasSubstr("stream 1"));
  backend->reset_events();
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->record(stream, event); }), HasSubstr("only 0 events"));
  const EventId again = backend->new_event();
  backend->record(stream, again);
  backend->synchronize();
  EXPECT_GT(backend->times(again).device_ns, 0);
}

TEST(CpuBackend, AHundredThousandEventsTakeLittleAndNothingMoreTheNextTime) {
  constexpr int kEvents = 100'000;
  const auto backend = make(1);
  const StreamId stream = backend->create_stream("main");
  const auto slot = [&] {
    EventId last = 0;
    for (int i = 0; i < kEvents; ++i) {
      last = backend->new_event();
      backend->record(stream, last);
    }
    backend->host_wait(last);
    EXPECT_GT(backend->times(last).device_ns, 0);
    backend->reset_events();
  };
  const std::int64_t before = resident_bytes();
  slot();
  const std::int64_t once = resident_bytes();
  for (int i = 1; i < 20; ++i) slot();
  const std::int64_t last = resident_bytes();
  if (kSanitized) GTEST_SKIP() << "the sanitizer's shadow memory is in the figures";
  EXPECT_LT(once - before, 16'000'000);
  // The queue may grow once more where the thread is slower than before; what each slot leaves behind adds up.
  EXPECT_LT(last - before, 24'000'000);
}

TEST(CpuBackend, RefusesWhatItCannotRun) {
  const auto backend = make();
  const StreamId stream = backend->create_stream("main");
  EXPECT_THAT(error_of(Exit::failure,
                       [&] {
                         (void)backend->lookup(stream, {OpKind::lookup, 1}, {}, 0);
                       }),
              HasSubstr("grid cap"));
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->linear(stream, {OpKind::wkv, 1}, {}); }), HasSubstr("matrix"));
  const std::vector<Bf16> values(6);
  EXPECT_THAT(error_of(Exit::failure, [&] { (void)backend->upload_matrix(values, 2, 4); }), HasSubstr("2 x 4"));
}

TEST(CpuBackend, DestructionDropsQueuedWorkAndLeavesNoThread) {
  const std::size_t before = thread_count();
  const auto start = std::chrono::steady_clock::now();
  std::uint8_t ran = 0;
  {
    const auto backend = make(4);
    const StreamId one = backend->create_stream("one");
    const StreamId two = backend->create_stream("two");
    EXPECT_EQ(thread_count(), before + 6);
    const EventId event = backend->new_event();
    backend->busy(one, kInject, 3'000'000'000);
    backend->record(one, event);
    backend->wait(two, event);
    for (int i = 0; i < 10'000; ++i) backend->busy(two, kInject, 1'000'000);
    backend->fill(two, {OpKind::fill}, bytes_of(&ran), 1, 1);
  }
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(thread_count(), before);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

// As cudaFree: memory does not go while queued work may use it.
TEST(CpuBackend, FreeingABufferWaitsForTheStreams) {
  const auto backend = make();
  const StreamId stream = backend->create_stream("main");
  std::uint8_t seen = 0;
  {
    const auto buffer = backend->allocate(100, MemoryKind::device, "test");
    buffer->as<std::uint8_t>()[5] = 9;
    backend->busy(stream, kInject, 10'000'000);
    backend->copy(stream, {OpKind::copy}, bytes_of(&seen), buffer->data() + 5, 1);
  }
  EXPECT_EQ(seen, 9);
  backend->synchronize();
}

TEST(CpuBackend, UnwindingDropsTheQueueInsteadOfWaiting) {
  const auto backend = make();
  const StreamId stream = backend->create_stream("main");
  const auto start = std::chrono::steady_clock::now();
  try {
    const auto buffer = backend->allocate(100, MemoryKind::device, "test");
    backend->busy(stream, kInject, 20'000'000'000);
    backend->fill(stream, {OpKind::fill}, buffer->data(), 1, 100);
    throw std::runtime_error("the host failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_THAT(error_of(Exit::failure, [&] { backend->synchronize(); }), HasSubstr("stopped"));
}

TEST(CpuBackend, BuffersAreAlignedZeroAndPresent) {
  const auto backend = make(1);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}, std::size_t{5'000'000}}) {
    const auto buffer = backend->allocate(bytes, MemoryKind::pinned_host, "test");
    ASSERT_EQ(buffer->size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0U);
    const std::span<const std::byte> view(buffer->data(), bytes);
    EXPECT_TRUE(std::all_of(view.begin(), view.end(), [](std::byte b) { return b == std::byte{0}; }));
    std::vector<unsigned char> present((std::max<std::size_t>(bytes, 1) + page_bytes() - 1) / page_bytes());
    ASSERT_EQ(::mincore(buffer->data(), std::max<std::size_t>(bytes, 1), present.data()), 0);
    EXPECT_TRUE(std::all_of(present.begin(), present.end(), [](unsigned char page) { return (page & 1U) != 0; }));
  }
}

// Registration allocates each page of a truncated file, and keeps what was there.
TEST(CpuBackend, RegistrationFaultsEveryPageAndKeepsContent) {
  constexpr std::size_t kBytes = 3 << 20;
  const UniqueFd fd = make_memfd("register-test", kBytes);
  const Mapping mapping = Mapping::shared(fd.get(), kBytes, "test");
  mapping.data()[1'000'000] = std::byte{42};
  std::vector<unsigned char> present(kBytes / page_bytes());
  const auto pages = [&] {
    EXPECT_EQ(::mincore(mapping.data(), kBytes, present.data()), 0);
    return std::count_if(present.begin(), present.end(), [](unsigned char page) { return (page & 1U) != 0; });
  };
  EXPECT_EQ(pages(), 1);
  const auto backend = make(1);
  const auto registration = backend->register_table(mapping.data(), kBytes);
  EXPECT_EQ(registration->device_address(), mapping.data());
  EXPECT_EQ(pages(), static_cast<std::ptrdiff_t>(present.size()));
  EXPECT_EQ(mapping.data()[1'000'000], std::byte{42});
}

// y = x w^T and y += s x w^T, with leading dimensions larger than the rows and more rows than a block of the GEMM.
TEST(CpuBackend, LinearMatchesAPlainProduct) {
  constexpr std::int64_t n = 48;
  constexpr std::int64_t k = 80;
  constexpr std::int64_t ldx = 96;
  constexpr std::int64_t ldy = 50;
  const auto backend = make(1);
  const StreamId stream = backend->create_stream("main");
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const std::int64_t m : {std::int64_t{0}, std::int64_t{1}, cpu::kGemmRows, 2 * cpu::kGemmRows + 3}) {
    std::vector<Bf16> x(static_cast<std::size_t>(m * ldx));
    std::vector<Bf16> w(static_cast<std::size_t>(n * k));
    std::vector<Bf16> y(static_cast<std::size_t>(m * ldy));
    for (auto* values : {&x, &w, &y}) {
      for (Bf16& value : *values) value = to_bf16(uniform(random));
    }
    const std::vector<Bf16> y_before = y;
    const auto matrix = backend->upload_matrix(w, n, k);
    EXPECT_EQ(matrix->n(), n);
    EXPECT_EQ(matrix->k(), k);
    for (const float scale : {0.0F, 0.25F}) {
      y = y_before;
      backend->linear(stream, {OpKind::wkv, 1}, {x.data(), ldx, matrix.get(), y.data(), ldy, m, scale});
      backend->synchronize();
      for (std::int64_t row = 0; row < m; ++row) {
        for (std::int64_t column = 0; column < ldy; ++column) {
          const auto at = static_cast<std::size_t>(row * ldy + column);
          if (column >= n) {
            ASSERT_EQ(y[at], y_before[at]) << "padding was written";
            continue;
          }
          double sum = 0;
          for (std::int64_t i = 0; i < k; ++i) {
            sum += static_cast<double>(to_float(x[static_cast<std::size_t>(row * ldx + i)])) *
                   static_cast<double>(to_float(w[static_cast<std::size_t>(column * k + i)]));
          }
          const double wanted = scale == 0 ? sum : static_cast<double>(to_float(y_before[at])) + scale * sum;
          // Half a BF16 step, and float32 summation.
          ASSERT_NEAR(static_cast<double>(to_float(y[at])), wanted, std::abs(wanted) / 256 + 1e-4)
              << row << " " << column;
        }
      }
    }
  }
}

// Every grid reads the same rows; the workers share it.
TEST(CpuBackend, LookupRunsEveryTileWhateverTheGrid) {
  constexpr std::int32_t dim = 32;
  constexpr std::int64_t table_rows = 1000;
  constexpr std::int64_t tokens = 77;
  constexpr std::int32_t heads = 3;
  std::vector<Bf16> table(static_cast<std::size_t>(table_rows * dim));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = to_bf16(static_cast<float>(i % 251));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens * heads));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 37 % table_rows);
  std::vector<Bf16> staging(ids.size() * dim);
  kernels::LookupArgs args;
  args.table.weights = bytes_of(table.data());
  args.table.weight_stride = dim * 2;
  args.table.rows = table_rows;
  args.table.dim = dim;
  args.table.format = kernels::RowFormat::bf16;
  args.ids = ids.data();
  args.id_token_stride = heads;
  args.tokens = tokens;
  args.columns = args.heads = heads;
  args.staging = staging.data();
  const auto backend = make(3);
  const StreamId one = backend->create_stream("one");
  const StreamId two = backend->create_stream("two");
  std::vector<Bf16> staging_two(staging.size());
  kernels::LookupArgs args_two = args;
  args_two.staging = staging_two.data();
  for (const std::int64_t cap : {1, 2, 3, 5, 100}) {
    std::fill(staging.begin(), staging.end(), Bf16{0xFFFF});
    std::fill(staging_two.begin(), staging_two.end(), Bf16{0xFFFF});
    EXPECT_EQ(backend->lookup(one, {OpKind::lookup, 1}, args, cap), std::min<std::int64_t>(cap, 15));
    EXPECT_EQ(backend->lookup(two, {OpKind::lookup, 14}, args_two, cap), std::min<std::int64_t>(cap, 15));
    backend->synchronize();
    for (std::size_t row = 0; row < ids.size(); ++row) {
      const auto id = static_cast<std::size_t>(ids[row]);
      ASSERT_EQ(std::memcmp(&staging[row * dim], &table[id * dim], dim * 2), 0) << "row " << row << ", cap " << cap;
    }
    EXPECT_EQ(std::memcmp(staging.data(), staging_two.data(), staging.size() * 2), 0);
  }
  args.tokens = 0;
  EXPECT_EQ(backend->lookup(one, {OpKind::lookup, 1}, args, 4), 0);
  backend->synchronize();
}

}  // namespace
}  // namespace eb::backend
