// Injected work on CUDA: one thread reads the device's clock until the time has passed. Its tick is about 1 us.
#include "kernels/cuda.h"

namespace eb::kernels {

namespace {

__device__ __forceinline__ std::int64_t device_ns() {
  std::int64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void busy_kernel(const std::int64_t duration_ns) {
  const std::int64_t end = device_ns() + duration_ns;
  while (device_ns() < end) {
  }
}

}  // namespace

cudaError_t busy_cuda(std::int64_t duration_ns, cudaStream_t stream) {
  busy_kernel<<<1, 1, 0, stream>>>(duration_ns);
  return cudaGetLastError();
}

}  // namespace eb::kernels
