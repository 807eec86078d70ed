// Checks of CUDA calls and owners of its small resources.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "harness/base/error.h"

namespace eb::backend::cuda {

// Throws Error(failure) with `what`, CUDA's name and text of the error, and what to do about it where that is known.
[[noreturn]] void fail_cuda(cudaError_t error, const std::string& what);

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail_cuda(error, what);
}
inline void check(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess) fail_cuda(error, what);
}
// For destructors: there is nobody left to tell, and the sticky error shows up in the next check.
inline void ignore(cudaError_t /*error*/) noexcept {}

// A stream that runs beside all others.
class OwnedStream {
 public:
  OwnedStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~OwnedStream() { ignore(cudaStreamDestroy(stream_)); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A timing event.
class OwnedEvent {
 public:
  OwnedEvent() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  OwnedEvent(OwnedEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  OwnedEvent& operator=(OwnedEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  ~OwnedEvent() {
    if (event_ != nullptr) ignore(cudaEventDestroy(event_));
  }
  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace eb::backend::cuda
