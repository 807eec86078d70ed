// The threads that stand for the SMs of a device.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace eb::backend::cpu {

// Runs the programs of a grid, at most `workers` at once over all callers. Programs are taken in the order of the
// calls, as a GPU's block scheduler does, and run to their end. Thread-safe: each stream calls run() from its thread.
class WorkerPool {
 public:
  explicit WorkerPool(int workers);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();

  // Runs program(0) .. program(grid - 1) and blocks until all have ended; rethrows the first exception of one.
  template <typename Program>
  void run(std::int64_t grid, const Program& program) {
    Job job;
    job.call = [](const void* context, std::int64_t index) { (*static_cast<const Program*>(context))(index); };
    job.context = &program;
    job.grid = grid;
    run(job);
  }

 private:
  struct Job {
    void (*call)(const void* context, std::int64_t index) = nullptr;
    const void* context = nullptr;
    std::int64_t grid = 0;
    std::int64_t taken = 0;
    std::int64_t ended = 0;
    std::exception_ptr error;
    Job* next = nullptr;
    std::condition_variable done;
  };
  void run(Job& job);
  void work();
  void stop() noexcept;

  std::mutex mutex_;
  std::condition_variable ready_;
  Job* first_ = nullptr;  // jobs with programs not yet taken, oldest first
  Job* last_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace eb::backend::cpu
