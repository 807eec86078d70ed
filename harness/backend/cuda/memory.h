// Memory of the CUDA backend: buffers and registered tables.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <cuda_runtime.h>

#include "harness/backend/backend.h"

namespace eb::backend::cuda {

// The runtime's calls that can refuse memory. A test puts its own in, to see what is said of a refusal that no hardware
// at hand gives. Not thread-safe.
struct MemoryCalls {
  cudaError_t (*allocate)(void** address, std::size_t bytes);
  cudaError_t (*allocate_pinned)(void** address, std::size_t bytes);
  cudaError_t (*host_register)(void* address, std::size_t bytes, unsigned flags);
  cudaError_t (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes);
};
[[nodiscard]] MemoryCalls& memory_calls() noexcept;

// cudaMalloc, counted. Errors: Error(failure) that names `what` and the bytes; where memory is short, also what is free
// and how much of the rest is other processes'.
void* allocate_device(std::size_t bytes, const std::string& what);
void free_device(void* address, std::size_t bytes) noexcept;

// Zero filled. Errors: Error(failure) that names `what` and the bytes.
[[nodiscard]] std::unique_ptr<Buffer> make_buffer(std::size_t bytes, MemoryKind kind, const char* what);

// cudaHostRegister of a mapping, then a look through the device's address: bytes read by the device must be the
// mapping's. Errors: Error(failure), also for a memlock limit that is too small.
[[nodiscard]] std::unique_ptr<Registration> register_mapping(std::byte* address, std::size_t bytes);

// The device's view of a mapping that the driver has let it at already: the same look, no registration. Errors: as
// above.
[[nodiscard]] std::unique_ptr<Registration> view_numa_memory(std::byte* address, std::size_t bytes);

}  // namespace eb::backend::cuda
