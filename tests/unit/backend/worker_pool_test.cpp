// The threads that stand for the SMs.
#include "harness/backend/cpu/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace eb::backend::cpu {
namespace {

TEST(WorkerPool, RunsEachProgramOnceWhateverTheGrid) {
  WorkerPool pool(3);
  for (const std::int64_t grid : {0, 1, 2, 3, 4, 50}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(grid));
    pool.run(grid, [&](std::int64_t program) { ++runs[static_cast<std::size_t>(program)]; });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

// Four programs that wait for each other: with fewer than four at once this would not end.
TEST(WorkerPool, ProgramsRunAtOnce) {
  WorkerPool pool(4);
  std::barrier meeting(4);
  for (int round = 0; round < 20; ++round) {
    pool.run(4, [&](std::int64_t) { meeting.arrive_and_wait(); });
  }
}

TEST(WorkerPool, NeverMoreProgramsAtOnceThanWorkersOverAllCallers) {
  WorkerPool pool(2);
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  const auto program = [&](std::int64_t) {
    const int now = ++running;
    int seen = most.load();
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --running;
  };
  std::thread other([&] { pool.run(16, program); });
  pool.run(16, program);
  other.join();
  EXPECT_EQ(most.load(), 2);
}

TEST(WorkerPool, AProgramsExceptionReachesTheCallerAfterAllHaveEnded) {
  WorkerPool pool(2);
  std::atomic<int> ended{0};
  try {
    pool.run(8, [&](std::int64_t program) {
      ++ended;
      if (program == 3) throw std::runtime_error("program 3");
    });
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "program 3");
  }
  EXPECT_EQ(ended.load(), 8);
  pool.run(2, [&](std::int64_t) { ++ended; });
  EXPECT_EQ(ended.load(), 10);
}

}  // namespace
}  // namespace eb::backend::cpu
