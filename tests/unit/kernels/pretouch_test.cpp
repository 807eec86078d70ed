#include "kernels/pretouch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"

namespace eb::kernels {
namespace {

constexpr TouchMethod kMethods[] = {TouchMethod::populate_write, TouchMethod::rewrite};

bool usable(TouchMethod method) { return method == TouchMethod::rewrite || has_populate_write(); }

std::size_t resident_pages(const std::byte* address, std::size_t bytes) {
  std::vector<unsigned char> present((bytes + page_bytes() - 1) / page_bytes());
  EXPECT_EQ(::mincore(const_cast<std::byte*>(address), bytes, present.data()), 0);
  return static_cast<std::size_t>(std::count_if(present.begin(), present.end(), [](auto p) { return (p & 1) != 0; }));
}

TEST(Pretouch, AllocatesEveryPageAndKeepsContent) {
  const std::size_t bytes = (std::size_t{9} << 20) + page_bytes();
  for (const TouchMethod method : kMethods) {
    if (!usable(method)) continue;
    for (const int threads : {1, 2, 3, 7, 40}) {
      const UniqueFd fd = make_memfd("pretouch_test", bytes);
      const Mapping mapping = Mapping::shared(fd.get(), bytes, "test");
      ASSERT_EQ(resident_pages(mapping.data(), bytes), 0U);
      for (const std::size_t at : {std::size_t{0}, bytes / 2 + 17, bytes - 1}) mapping.data()[at] = std::byte{0x5A};
      mapping.data()[page_bytes()] = std::byte{0x33};  // the very byte that the rewriting loop touches
      pretouch(mapping.data(), bytes, threads, method);
      struct stat state {};
      ASSERT_EQ(::fstat(fd.get(), &state), 0);
      EXPECT_EQ(static_cast<std::size_t>(state.st_blocks) * 512, bytes) << threads << " threads";
      EXPECT_EQ(mapping.data()[0], std::byte{0x5A});
      EXPECT_EQ(mapping.data()[page_bytes()], std::byte{0x33});
      EXPECT_EQ(mapping.data()[bytes / 2 + 17], std::byte{0x5A});
      EXPECT_EQ(mapping.data()[bytes - 1], std::byte{0x5A});
      EXPECT_EQ(std::count_if(mapping.data(), mapping.data() + bytes, [](std::byte b) { return b != std::byte{0}; }),
                4);
    }
  }
}

TEST(Pretouch, TouchesTheGivenRangeOnly) {
  const std::size_t bytes = std::size_t{12} << 20;
  for (const TouchMethod method : kMethods) {
    if (!usable(method)) continue;
    const UniqueFd fd = make_memfd("pretouch_test", bytes);
    const Mapping mapping = Mapping::shared(fd.get(), bytes, "test");
    const std::size_t first = 3 * page_bytes();
    pretouch(mapping.data() + first, std::size_t{5} << 20, 3, method);
    struct stat state {};
    ASSERT_EQ(::fstat(fd.get(), &state), 0);
    EXPECT_EQ(static_cast<std::size_t>(state.st_blocks) * 512, std::size_t{5} << 20);
  }
}

// Another thread counts in a byte of every page while pages are touched again and again: no count may be lost.
TEST(Pretouch, LosesNoConcurrentWrite) {
  const std::size_t pages = 64;
  const std::size_t bytes = pages * page_bytes();
  for (const TouchMethod method : kMethods) {
    if (!usable(method)) continue;
    const UniqueFd fd = make_memfd("pretouch_test", bytes);
    const Mapping mapping = Mapping::shared(fd.get(), bytes, "test");
    const Mapping other = Mapping::shared(fd.get(), bytes, "a peer's view");
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> rounds{0};
    std::thread writer([&] {
      while (!stop.load()) {
        for (std::size_t p = 0; p < pages; ++p) {
          std::atomic_ref<unsigned char>(*reinterpret_cast<unsigned char*>(other.data() + p * page_bytes()))
              .fetch_add(1, std::memory_order_relaxed);
        }
        ++rounds;
      }
    });
    // Until both have had their turns, however the scheduler shares the CPUs.
    for (int i = 0; i < 500 || rounds.load() < 50; ++i) pretouch(mapping.data(), bytes, 1, method);
    stop = true;
    writer.join();
    for (std::size_t p = 0; p < pages; ++p) {
      ASSERT_EQ(std::to_integer<unsigned>(mapping.data()[p * page_bytes()]), rounds.load() % 256) << "page " << p;
    }
  }
}

TEST(Pretouch, ReportsMemoryBehindTheMappingThatIsNotThere) {
  if (!has_populate_write()) GTEST_SKIP() << "this kernel has no MADV_POPULATE_WRITE";
  const std::size_t bytes = std::size_t{8} << 20;
  const UniqueFd fd = make_memfd("pretouch_test", bytes / 2);  // the mapping's second half lies beyond the file
  const Mapping mapping = Mapping::shared(fd.get(), bytes, "test");
  try {
    pretouch(mapping.data(), bytes, 2);
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::failure);
    EXPECT_NE(std::string(error.what()).find("Bad address"), std::string::npos) << error.what();
  }
}

TEST(Pretouch, RefusesZeroThreads) {
  std::byte byte{};
  EXPECT_THROW(pretouch(&byte, 1, 0), Error);
}

}  // namespace
}  // namespace eb::kernels
