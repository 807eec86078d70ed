// Looks on at the work of one backend: NVTX ranges for a profiler that is attached, CUPTI's kernel records, and which
// SMs a lookup runs on. Off, it costs a test of a flag for each operation; nothing of it is loaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "harness/backend/backend.h"
#include "harness/backend/cuda/check.h"

namespace eb::backend::cuda {

// Host thread only; everything is synchronised at begin and end.
class Observer {
 public:
  Observer() = default;
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  void begin(const Observation& what);
  [[nodiscard]] Observed end();
  [[nodiscard]] bool on() const noexcept { return on_; }
  void push(Op op);
  void pop();
  // Where the next lookup of `layer` counts its blocks by SM, zeroed on `stream`; null: nobody looks.
  [[nodiscard]] std::uint32_t* units_of(int layer, cudaStream_t stream);

 private:
  Observation what_;
  bool on_ = false;
  std::string no_spans_;
  std::map<int, std::uint32_t*> units_;  // device memory, of each layer that was looked up
};

// While it lives, what is enqueued is for `op`.
class Watched {
 public:
  Watched(Observer& observer, Op op) : observer_(observer.on() ? &observer : nullptr) {
    if (observer_ != nullptr) observer_->push(op);
  }
  ~Watched() {
    if (observer_ != nullptr) observer_->pop();
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Observer* observer_;
};

}  // namespace eb::backend::cuda
