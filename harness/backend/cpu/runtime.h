// The threads of a CPU backend, and the state that its buffers share with them.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/event_pool.h"
#include "harness/backend/cpu/gemm.h"
#include "harness/backend/cpu/groups.h"
#include "harness/backend/cpu/task_queue.h"

namespace eb::backend::cpu {

// The first failure of the streams, and whether work still runs. Once something failed, all later work is skipped (its
// input may be missing) while events still complete, so that nothing hangs. Thread-safe.
class Status {
 public:
  void set_failed(const std::string& text);
  void set_stopped() noexcept { skip_.store(true, std::memory_order_release); }
  [[nodiscard]] bool skip() const noexcept { return skip_.load(std::memory_order_acquire); }
  [[nodiscard]] const std::atomic<bool>& skip_flag() const noexcept { return skip_; }
  // Errors: Error(failure) with the first failure's text, each time.
  void rethrow() const;

 private:
  std::atomic<bool> skip_{false};
  mutable std::mutex mutex_;
  std::string text_;
};

class Runtime;

// What a task gets.
struct StreamContext {
  Runtime* runtime = nullptr;
  std::string name;
  GemmScratch scratch;
  bool quit = false;
};

// One stream: a queue and its thread. push() and drain() by the host thread only.
class Stream {
 public:
  Stream(Runtime& runtime, const std::string& name);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  template <typename Task>
  void push(const Task& task) {
    queue_.push(task);
  }
  // Ends the thread once the queue has run out.
  void quit();
  // Blocks until everything pushed has run.
  void drain();
  [[nodiscard]] bool idle() const noexcept { return queue_.idle(); }

 private:
  TaskQueue<StreamContext> queue_;
  StreamContext context_;
  EventSlot drained_;
  bool quitting_ = false;
  std::thread thread_;
};

// Host thread only, but for failed(). Kept alive by the buffers made of it; shut_down() ends its threads.
class Runtime {
 public:
  explicit Runtime(const CpuOptions& options);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime() { shut_down(); }

  [[nodiscard]] StreamId create_stream(const std::string& name);
  // Errors: Error(failure) for an unknown stream.
  [[nodiscard]] Stream& stream(StreamId stream) const;
  // Errors: see Groups::at.
  [[nodiscard]] Channel& channel(const GroupSpec& group) const { return groups_.at(group); }
  [[nodiscard]] Status& status() noexcept { return status_; }

  // Queues `body(context)` as `op`: skipped after a failure; what it throws becomes the failure. `body` is copied.
  template <typename Body>
  void enqueue(StreamId to, Op op, const Body& body) {
    stream(to).push([op, body](StreamContext& context) {
      if (context.runtime->status().skip()) return;
      try {
        body(context);
      } catch (const std::exception& error) {
        context.runtime->failed(context, op, error.what());
      }
    });
  }

  void drain();
  // Before memory goes that queued work may use: waits for the streams, as cudaFree does. While an exception unwinds
  // the stack the queued work is dropped instead: its peers may never come.
  void quiesce() noexcept;
  // Drops queued work, ends the threads. Never hangs: events complete, collectives are given up.
  void shut_down() noexcept;

 private:
  void failed(const StreamContext& context, Op op, const char* text);

  Status status_;
  Groups groups_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace eb::backend::cpu
