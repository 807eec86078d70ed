// Collectives of the CUDA backend: NCCL between GPUs, host memory where two ranks of a group share one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/channel.h"
#include "harness/backend/cuda/check.h"

namespace eb::backend::cuda {

// Finds the CUDA stream of a StreamId.
using StreamOf = std::function<cudaStream_t(StreamId)>;
// Keeps the first failure of work that runs behind the host's back (host functions of a stream).
using Failed = std::function<void(const std::string&)>;

// Messages through pinned buffers and the group's channel: two ranks on one device cannot share an NCCL communicator.
// A host function of the stream does the exchange, so it is stream-ordered; it blocks until the peers come.
[[nodiscard]] std::unique_ptr<Communicator> make_host_staged(cpu::Channel& channel, StreamOf stream, Failed failed);

// NCCL over the group, NVLink multicast off. The unique id travels through the channel. Errors: Error(failure):
// libnccl.so.2 does not load; what NCCL says.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl(cpu::Channel& channel, StreamOf stream);
// "2.27.3". Errors: as make_nccl.
[[nodiscard]] std::string nccl_version();

}  // namespace eb::backend::cuda
