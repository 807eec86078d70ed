// Kernels as the device ran them, from CUPTI's activity records. libcupti is loaded when it is first asked for; what it
// costs falls into the slots that are traced, and such runs carry no verdict.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/backend/backend.h"

namespace eb::backend::cuda {

// Why spans cannot be had: a build without CUPTI's header, no libcupti, or what it answered. Empty: recording.
// One recording a process at a time. Host thread; everything synchronised at begin and end.
[[nodiscard]] std::string begin_kernel_spans();
// The work that the host enqueues from here on is for `op`, until the matching pop.
void push_span_op(Op op) noexcept;
void pop_span_op() noexcept;
// Into spans, clock_error_ns and dropped.
void end_kernel_spans(Observed& seen);

}  // namespace eb::backend::cuda
