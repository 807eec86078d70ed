// The queue of a stream: unbounded, one producer (the rank's host thread), one consumer (the stream's thread).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "harness/backend/cpu/futex.h"

namespace eb::backend::cpu {

// Tasks are small trivially copyable callables, called as task(context). They are stored back to back in blocks that
// are used again once the consumer has passed them, so that a queue in steady state allocates nothing; an event record
// takes 24 bytes of it, a hash 400. A push makes a system call only if the consumer sleeps.
template <typename Context>
class TaskQueue {
 public:
  TaskQueue() {
    first_ = tail_ = new Block;
    reading_.store(first_, std::memory_order_relaxed);
    read_block_ = first_;
  }
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;
  ~TaskQueue() {
    while (first_ != nullptr) {
      Block* next = first_->next;
      delete first_;
      first_ = next;
    }
  }

  // Producer.
  template <typename Task>
  void push(const Task& task) {
    static_assert(std::is_trivially_copyable_v<Task> && alignof(Task) <= kAlign && sizeof(Task) <= kBlockBytes / 4);
    constexpr std::size_t bytes = sizeof(Header) + round_up(sizeof(Task));
    std::byte* place = reserve(bytes);
    new (place) Header{&run<Task>, bytes};
    new (place + sizeof(Header)) Task(task);
    // Sequentially consistent against sleep(): either the consumer sees the count, or this sees it asleep.
    pushed_.store(++produced_, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst) != 0) wake();
  }

  // Consumer: runs the next task, sleeping while there is none.
  void run_next(Context& context) {
    while (pushed_.load(std::memory_order_acquire) == consumed_) sleep();
    auto* header = std::launder(reinterpret_cast<Header*>(read_block_->data + read_offset_));
    if (header->run == nullptr) {  // the block ends here
      read_block_ = read_block_->next;
      read_offset_ = 0;
      reading_.store(read_block_, std::memory_order_release);
      header = std::launder(reinterpret_cast<Header*>(read_block_->data));
    }
    header->run(reinterpret_cast<std::byte*>(header) + sizeof(Header), context);
    read_offset_ += header->bytes;
    executed_.store(++consumed_, std::memory_order_release);
  }

  // Producer: all that was pushed has run.
  [[nodiscard]] bool idle() const noexcept { return executed_.load(std::memory_order_acquire) == produced_; }

 private:
  static constexpr std::size_t kAlign = 8;
  static constexpr std::size_t kBlockBytes = 64 * 1024;
  struct Header {
    void (*run)(std::byte* task, Context& context);
    std::size_t bytes;
  };
  struct Block {
    Block* next = nullptr;
    alignas(kAlign) std::byte data[kBlockBytes];
  };

  static constexpr std::size_t round_up(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  template <typename Task>
  static void run(std::byte* task, Context& context) {
    (*std::launder(reinterpret_cast<Task*>(task)))(context);
  }

  std::byte* reserve(std::size_t bytes) {
    if (write_offset_ + bytes + sizeof(Header) > kBlockBytes) {  // the last header's place is kept for the jump
      new (tail_->data + write_offset_) Header{nullptr, 0};
      Block* next = nullptr;
      if (first_ != reading_.load(std::memory_order_acquire)) {  // the consumer has left the oldest block
        next = first_;
        first_ = first_->next;
        next->next = nullptr;
      } else {
        next = new Block;
      }
      tail_->next = next;
      tail_ = next;
      write_offset_ = 0;
    }
    std::byte* place = tail_->data + write_offset_;
    write_offset_ += bytes;
    return place;
  }

  void sleep() noexcept {
    asleep_.store(1, std::memory_order_seq_cst);
    if (pushed_.load(std::memory_order_seq_cst) == consumed_) futex_wait(asleep_, 1);
    asleep_.store(0, std::memory_order_seq_cst);
  }

  void wake() noexcept {
    if (asleep_.exchange(0, std::memory_order_seq_cst) != 0) futex_wake_all(asleep_);
  }

  // Producer's.
  Block* first_ = nullptr;  // oldest block of the chain
  Block* tail_ = nullptr;
  std::size_t write_offset_ = 0;
  std::uint64_t produced_ = 0;
  // Both sides'.
  alignas(64) std::atomic<std::uint64_t> pushed_{0};
  std::atomic<std::uint32_t> asleep_{0};
  alignas(64) std::atomic<std::uint64_t> executed_{0};
  std::atomic<Block*> reading_{nullptr};
  // Consumer's.
  alignas(64) Block* read_block_ = nullptr;
  std::size_t read_offset_ = 0;
  std::uint64_t consumed_ = 0;
};

}  // namespace eb::backend::cpu
