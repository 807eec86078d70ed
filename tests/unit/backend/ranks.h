// Runs ranks as processes (as in production) or as threads (so that the sanitizers see both sides) over one arena.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "harness/backend/backend.h"

namespace eb::backend::test {

// A shared zero-filled arena for the groups; forked children see the same pages.
class SharedArena {
 public:
  explicit SharedArena(std::span<const GroupSpec> groups, std::size_t extra = 4096)
      : bytes_(arena_bytes(groups) + extra) {
    address_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (address_ == MAP_FAILED) throw std::runtime_error("mmap of the test arena failed");
  }
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;
  ~SharedArena() { ::munmap(address_, bytes_); }
  [[nodiscard]] Arena get() const { return {static_cast<std::byte*>(address_), bytes_}; }
  // Behind the groups' part.
  template <typename T>
  [[nodiscard]] T* extra(std::span<const GroupSpec> groups) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(address_) + arena_bytes(groups));
  }

 private:
  void* address_;
  std::size_t bytes_;
};

enum class As { processes, threads };

// Calls body(rank) for each rank at once. A failed expectation or an exception in a rank fails the test, as does a rank
// that has not ended after `limit`.
inline void run_ranks(As as, int ranks, const std::function<void(int)>& body,
                      std::chrono::seconds limit = std::chrono::seconds(60)) {
  const auto guarded = [&](int rank) {
    try {
      body(rank);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << error.what();
    }
  };
  if (as == As::threads) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(guarded, rank);
    for (std::thread& thread : threads) thread.join();
    return;
  }
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      guarded(rank);
      std::fflush(nullptr);
      ::_exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  const auto end = std::chrono::steady_clock::now() + limit;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = children[static_cast<std::size_t>(rank)];
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
        ADD_FAILURE() << "rank " << rank << " hung";
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": wait status " << status;
  }
}

// {0..n-1} as one group; each rank sets its own index.
inline GroupSpec group_of(const std::string& name, std::vector<int> ranks, int rank) {
  GroupSpec group{name, std::move(ranks), 0};
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    if (group.ranks[i] == rank) group.index = static_cast<int>(i);
  }
  return group;
}

}  // namespace eb::backend::test
