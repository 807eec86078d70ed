// The part of a GPU driver that makes host memory on a NUMA node and hands it to other processes by descriptor. A seam:
// the real one (harness/backend/cuda/driver.h) calls libcuda.so.1, the stand-in (harness/backend/fake) has memfds, so
// that descriptors, sizes, errors and ownership are tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace eb::backend {

// Every call returns 0 or the driver's error number; what() says it in words. Not thread-safe.
class DriverMemory {
 public:
  using Handle = std::uint64_t;  // one allocation
  virtual ~DriverMemory() = default;

  // Sizes and addresses are multiples of it (2 MiB).
  virtual int granularity(int node, std::size_t* bytes) = 0;
  // Allocates `bytes` on the node at once: no page is left to be faulted later.
  virtual int create(int node, std::size_t bytes, Handle* handle) = 0;
  // A new descriptor, the caller's.
  virtual int export_descriptor(Handle handle, int* fd) = 0;
  // The descriptor stays the caller's and may be closed afterwards.
  virtual int import_descriptor(int fd, Handle* handle) = 0;
  virtual int release(Handle handle) = 0;
  // Address space without memory, for mappings next to each other.
  virtual int reserve(std::size_t bytes, std::byte** address) = 0;
  virtual int free_reserved(std::byte* address, std::size_t bytes) = 0;
  virtual int map(std::byte* address, std::size_t bytes, Handle handle) = 0;
  virtual int unmap(std::byte* address, std::size_t bytes) = 0;
  // A mapping can be used by nobody until it is allowed. `node`: where its memory lies.
  virtual int allow_host(std::byte* address, std::size_t bytes, int node) = 0;
  virtual int allow_device(std::byte* address, std::size_t bytes) = 0;
  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
  [[nodiscard]] virtual std::string what(int error) = 0;
};

}  // namespace eb::backend
