#include <algorithm>
#include <cstring>
#include <vector>

#include "harness/backend/cpu/op_text.h"
#include "harness/backend/cuda/communicators.h"

namespace eb::backend::cuda {

namespace {

// Pinned memory that grows to the largest message.
class Pinned {
 public:
  ~Pinned() {
    if (data_ != nullptr) ignore(cudaFreeHost(data_));
  }
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  // The stream must not use the old memory any more when it has to grow.
  std::byte* at_least(std::size_t bytes, cudaStream_t stream) {
    if (bytes > bytes_) {
      check(cudaStreamSynchronize(stream), "wait before a message buffer grows");
      if (data_ != nullptr) ignore(cudaFreeHost(std::exchange(data_, nullptr)));
      check(cudaMallocHost(&data_, bytes), "pinned memory for host-staged collectives");
      bytes_ = bytes;
    }
    return static_cast<std::byte*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class HostStaged final : public Communicator {
 public:
  HostStaged(cpu::Channel& channel, StreamOf stream, Failed failed)
      : channel_(channel), stream_(std::move(stream)), failed_(std::move(failed)) {}

  [[nodiscard]] int size() const noexcept override { return static_cast<int>(channel_.members()); }
  [[nodiscard]] int index() const noexcept override { return static_cast<int>(channel_.index()); }

  void all_gather(StreamId stream, Op op, const std::byte* send, std::byte* recv, std::size_t bytes) override {
    exchange(stream, op, send, bytes, recv, bytes, false);
  }
  void all_to_all(StreamId stream, Op op, const std::byte* send, std::byte* recv, std::size_t bytes) override {
    exchange(stream, op, send, bytes * channel_.members(), recv, bytes, true);
  }

 private:
  struct Call {
    HostStaged* self;
    Op op;
    const std::byte* send;
    std::byte* recv;
    std::size_t bytes;
    bool to_all;
  };

  void exchange(StreamId stream, Op op, const std::byte* send, std::size_t send_bytes, std::byte* recv,
                std::size_t bytes, bool to_all) {
    const cudaStream_t on = stream_(stream);
    const std::size_t recv_bytes = bytes * channel_.members();
    std::byte* out = sent_.at_least(send_bytes, on);
    std::byte* in = received_.at_least(recv_bytes, on);
    check(cudaMemcpyAsync(out, send, send_bytes, cudaMemcpyDeviceToHost, on), "host-staged collective, to the host");
    auto* call = new Call{this, op, out, in, bytes, to_all};  // freed by run()
    if (const auto error = cudaLaunchHostFunc(on, &HostStaged::run, call); error != cudaSuccess) {
      delete call;
      fail_cuda(error, "host-staged collective");
    }
    check(cudaMemcpyAsync(recv, in, recv_bytes, cudaMemcpyHostToDevice, on), "host-staged collective, to the device");
  }

  // On CUDA's own thread: must not call CUDA, must not throw.
  static void run(void* pointer) {
    const std::unique_ptr<Call> call(static_cast<Call*>(pointer));
    try {
      if (call->to_all) {
        call->self->channel_.all_to_all(call->op, call->send, call->recv, call->bytes, 0);
      } else {
        call->self->channel_.all_gather(call->op, call->send, call->recv, call->bytes, 0);
      }
    } catch (const std::exception& error) {
      call->self->failed_(fmt::format("{}: {}", cpu::op_text(call->op), error.what()));
    }
  }

  cpu::Channel& channel_;
  StreamOf stream_;
  Failed failed_;
  Pinned sent_;
  Pinned received_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_staged(cpu::Channel& channel, StreamOf stream, Failed failed) {
  return std::make_unique<HostStaged>(channel, std::move(stream), std::move(failed));
}

}  // namespace eb::backend::cuda
