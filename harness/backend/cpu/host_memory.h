// Host memory as device memory: buffers, matrices and registrations of the CPU and the fake backend.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/gemm.h"

namespace eb::backend::cpu {

// Called before memory goes that queued work may still use.
using Quiesce = std::function<void()>;

// Page aligned, zero filled, every page present: the first touch happens here, on the node that the calling thread's
// policy names, and not in a timed window. Errors: Error(failure) that names `what`.
[[nodiscard]] std::unique_ptr<Buffer> make_host_buffer(std::size_t bytes, const char* what, Quiesce quiesce);

[[nodiscard]] std::unique_ptr<Matrix> make_host_matrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k,
                                                       Quiesce quiesce);
// The floats of a matrix from make_host_matrix. Errors: Error(failure) for null or another backend's.
[[nodiscard]] const FloatMatrix& host_matrix(const Matrix* matrix);

// Faults every page for writing over the whole mapping, content kept, by the calling thread: what cudaHostRegister does
// to it.
[[nodiscard]] std::unique_ptr<Registration> make_host_registration(std::byte* address, std::size_t bytes,
                                                                   Quiesce quiesce);

}  // namespace eb::backend::cpu
