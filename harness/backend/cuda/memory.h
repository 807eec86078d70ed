// Memory of the CUDA backend: buffers and registered tables.
#pragma once

#include <memory>

#include "harness/backend/backend.h"

namespace eb::backend::cuda {

// Zero filled. Errors: Error(failure) that names `what` and the bytes.
[[nodiscard]] std::unique_ptr<Buffer> make_buffer(std::size_t bytes, MemoryKind kind, const char* what);

// cudaHostRegister of a mapping, then a look through the device's address: bytes read by the device must be the
// mapping's. Errors: Error(failure), also for a memlock limit that is too small.
[[nodiscard]] std::unique_ptr<Registration> register_mapping(std::byte* address, std::size_t bytes);

}  // namespace eb::backend::cuda
