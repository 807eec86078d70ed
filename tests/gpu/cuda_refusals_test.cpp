// What the CUDA module says where the runtime refuses memory. The refusals are planted in its table of calls, so this
// needs the toolkit and no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>

#include "harness/backend/cuda/memory.h"
#include "harness/base/error.h"
#include "tests/unit/error_of.h"

namespace eb::backend::cuda {
namespace {

using testing::HasSubstr;

class Refusals : public testing::Test {
 protected:
  void SetUp() override {
    kept_ = memory_calls();
    memory_calls().memory_info = [](std::size_t* free_bytes, std::size_t* total_bytes) {
      *free_bytes = 3'000'000'000;
      *total_bytes = 150'000'000'000;
      return cudaSuccess;
    };
  }
  void TearDown() override { memory_calls() = kept_; }

 private:
  MemoryCalls kept_{};
};

cudaError_t out_of_memory(void**, std::size_t) { return cudaErrorMemoryAllocation; }

TEST_F(Refusals, AFullDeviceSaysWhoHoldsIt) {
  memory_calls().allocate = out_of_memory;
  const std::string text =
      test::error_of(Exit::failure, [] { (void)make_buffer(5'000'000'000, MemoryKind::device, "staging"); });
  EXPECT_THAT(text, HasSubstr("staging: 5000000000 bytes of device memory"));
  EXPECT_THAT(text, HasSubstr("3000000000 of the device's 150000000000 bytes are free"));
  EXPECT_THAT(text, HasSubstr("0 are held by this rank and 147000000000 by other processes"));
  EXPECT_THAT(text, HasSubstr("nvidia-smi"));
  (void)test::error_of(Exit::failure, [] { (void)allocate_device(1, "x"); });
}

TEST_F(Refusals, WhatThisRankHoldsIsNotCalledOthers) {
  static std::array<std::byte, 16> somewhere;
  memory_calls().allocate = [](void** address, std::size_t) {
    *address = somewhere.data();
    return cudaSuccess;
  };
  void* mine = allocate_device(100'000'000'000, "weights");
  memory_calls().allocate = out_of_memory;
  const std::string text = test::error_of(Exit::failure, [] { (void)allocate_device(1, "more"); });
  EXPECT_THAT(text, HasSubstr("100000000000 are held by this rank and 47000000000 by other processes"));
  free_device(mine, 100'000'000'000);
}

TEST_F(Refusals, PinnedMemoryNamesWhatAndBytes) {
  memory_calls().allocate_pinned = out_of_memory;
  EXPECT_THAT(test::error_of(Exit::failure, [] { (void)make_buffer(4096, MemoryKind::pinned_host, "messages"); }),
              HasSubstr("messages: 4096 bytes of pinned memory"));
}

TEST_F(Refusals, ARegistrationThatIsRefusedNamesTheErrorAndBytes) {
  memory_calls().host_register = [](void*, std::size_t, unsigned) { return cudaErrorNotSupported; };
  std::array<std::byte, 4096> table{};
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < table.size())
    GTEST_SKIP() << "the memlock limit is below a page";
  const std::string text = test::error_of(Exit::failure, [&] { (void)register_mapping(table.data(), table.size()); });
  EXPECT_THAT(text, HasSubstr("cudaHostRegister of 4096 bytes: cudaErrorNotSupported"));
  EXPECT_THAT(text, HasSubstr("does not register such memory"));
}

TEST_F(Refusals, AMemlockLimitBelowTheTableIsTheReason) {
  memory_calls().host_register = [](void*, std::size_t, unsigned) { return cudaErrorMemoryAllocation; };
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit low = before;
  low.rlim_cur = 65536;
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  static std::array<std::byte, 1 << 20> table{};
  const std::string text = test::error_of(Exit::failure, [] { (void)register_mapping(table.data(), table.size()); });
  ::setrlimit(RLIMIT_MEMLOCK, &before);
  EXPECT_THAT(text, HasSubstr("the memlock limit is 65536 bytes"));
  EXPECT_THAT(text, HasSubstr("ulimit -l unlimited"));
}

}  // namespace
}  // namespace eb::backend::cuda
