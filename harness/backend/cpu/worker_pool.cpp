#include "harness/backend/cpu/worker_pool.h"

#include "harness/backend/cpu/service_thread.h"

namespace eb::backend::cpu {

WorkerPool::WorkerPool(int workers) {
  try {
    for (int i = 0; i < workers; ++i) threads_.push_back(service_thread("eb-worker", [this] { work(); }));
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(Job& job) {
  if (job.grid <= 0) return;
  std::unique_lock lock(mutex_);
  (last_ == nullptr ? first_ : last_->next) = &job;
  last_ = &job;
  if (job.grid == 1) {
    ready_.notify_one();
  } else {
    ready_.notify_all();
  }
  job.done.wait(lock, [&] { return job.ended == job.grid; });
  if (job.error) std::rethrow_exception(job.error);
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ready_.wait(lock, [&] { return stop_ || first_ != nullptr; });
    if (first_ == nullptr) return;
    Job& job = *first_;
    const std::int64_t program = job.taken++;
    if (job.taken == job.grid) {
      first_ = job.next;
      if (first_ == nullptr) last_ = nullptr;
    }
    lock.unlock();
    std::exception_ptr error;
    try {
      job.call(job.context, program);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !job.error) job.error = error;
    // Under the lock: the caller, who owns the job, can only go on when this thread has let go of it.
    if (++job.ended == job.grid) job.done.notify_one();
  }
}

}  // namespace eb::backend::cpu
