// The CPU backend: streams are threads, events are real, collectives go through shared memory.
#include <cblas.h>

#include <cstring>
#include <utility>

#include "harness/backend/backend.h"
#include "harness/backend/cpu/host_memory.h"
#include "harness/backend/cpu/op_text.h"
#include "harness/backend/cpu/runtime.h"
#include "harness/backend/cpu/worker_pool.h"
#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::backend {

namespace {

using cpu::Channel;
using cpu::EventSlot;
using cpu::Runtime;
using cpu::StreamContext;

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(std::shared_ptr<Runtime> runtime, Channel& channel)
      : runtime_(std::move(runtime)), channel_(&channel) {}

  [[nodiscard]] int size() const noexcept override { return static_cast<int>(channel_->members()); }
  [[nodiscard]] int index() const noexcept override { return static_cast<int>(channel_->index()); }

  void all_gather(StreamId stream, Op op, const std::byte* send, std::byte* recv, std::size_t bytes) override {
    runtime_->enqueue(stream, op, [channel = channel_, op, send, recv, bytes](StreamContext&) {
      channel->all_gather(op, send, recv, bytes, 0);
    });
  }
  void all_to_all(StreamId stream, Op op, const std::byte* send, std::byte* recv, std::size_t bytes) override {
    runtime_->enqueue(stream, op, [channel = channel_, op, send, recv, bytes](StreamContext&) {
      channel->all_to_all(op, send, recv, bytes, 0);
    });
  }

 private:
  std::shared_ptr<Runtime> runtime_;
  Channel* channel_;  // the runtime's: queued work may outlive this object
};

// Real work until the clock says so: the point is to take the CPU away from others.
void burn(std::int64_t duration_ns, const cpu::Status& status) {
  const std::int64_t end_ns = now_ns() + duration_ns;
  std::uint64_t state = 0x9E3779B97F4A7C15U;
  while (now_ns() < end_ns && !status.skip()) {
    for (int i = 0; i < 256; ++i) state = state * 6364136223846793005U + 1442695040888963407U;
    asm volatile("" : "+r"(state));  // keeps the loop
  }
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : info_{"cpu", "CPU threads", options.workers, options.numa_node, false},
        pool_(options.workers),
        runtime_(std::make_shared<Runtime>(options)) {}
  ~CpuBackend() override { runtime_->shut_down(); }

  [[nodiscard]] const DeviceInfo& device() const noexcept override { return info_; }

  [[nodiscard]] StreamId create_stream(const std::string& name) override { return runtime_->create_stream(name); }
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes, MemoryKind /*both are host memory*/,
                                                 const char* what) override {
    return cpu::make_host_buffer(bytes, what, quiesce());
  }
  [[nodiscard]] std::unique_ptr<Matrix> upload_matrix(std::span<const Bf16> values, std::int64_t n,
                                                      std::int64_t k) override {
    return cpu::make_host_matrix(values, n, k, quiesce());
  }
  [[nodiscard]] std::unique_ptr<Registration> register_table(std::byte* address, std::size_t bytes) override {
    return cpu::make_host_registration(address, bytes, quiesce());
  }
  [[nodiscard]] std::unique_ptr<Communicator> communicator(const GroupSpec& group) override {
    return std::make_unique<CpuCommunicator>(runtime_, runtime_->channel(group));
  }

  [[nodiscard]] EventId new_event() override { return events_.take(); }
  void reset_events() override {
    runtime_->drain();
    events_.reset();
  }
  void record(StreamId stream, EventId event) override {
    EventSlot& slot = events_.at(event);
    if (slot.enqueue_ns != 0) {
      fail(Exit::failure, "event {} was recorded twice since the last reset; take a new one", event);
    }
    cpu::Stream& to = runtime_->stream(stream);
    slot.enqueue_ns = now_ns();
    // Not skipped after a failure: whoever waits for it must go on.
    to.push([slot = &slot](StreamContext&) { slot->complete(now_ns()); });
  }
  void wait(StreamId stream, EventId event) override {
    runtime_->stream(stream).push([slot = &recorded(event)](StreamContext&) { slot->wait(); });
  }
  void host_wait(EventId event) override {
    recorded(event).wait();
    runtime_->status().rethrow();
  }
  void synchronize() override {
    runtime_->drain();
    runtime_->status().rethrow();
  }
  [[nodiscard]] EventTimes times(EventId event) const override {
    const EventSlot& slot = events_.at(event);
    if (!slot.done()) fail(Exit::failure, "event {} has not completed: it has no time yet", event);
    return {slot.enqueue_ns, slot.device_ns};
  }

  // In the stream's own thread, not on the workers: a lookup's programs are persistent, so a hash or gate queued behind
  // them would wait for the whole lookup, where on a GPU it finds free SMs beside a capped grid.
  void hash(StreamId stream, Op op, const kernels::HashArgs& args) override {
    runtime_->enqueue(stream, op, [args](StreamContext&) { kernels::hash_tokens(args, 0, args.tokens); });
  }
  void gate(StreamId stream, Op op, const kernels::GateArgs& args) override {
    runtime_->enqueue(stream, op, [args](StreamContext&) { kernels::gate_tokens(args, 0, args.tokens); });
  }
  void sort_rows(StreamId stream, Op op, const kernels::LookupArgs& args, std::int32_t* order) override {
    runtime_->enqueue(stream, op, [args, order](StreamContext&) { kernels::sort_rows(args, order); });
  }
  void select(StreamId stream, Op op, const kernels::SelectArgs& args) override {
    runtime_->enqueue(stream, op, [args](StreamContext&) { kernels::select_rows(args); });
  }

  std::int64_t lookup(StreamId stream, Op op, const kernels::LookupArgs& args, std::int64_t grid_cap) override {
    return persistent(stream, op, args.tiles(), grid_cap, [args](std::int64_t program, std::int64_t grid) {
      kernels::lookup_program(args, program, grid);
    });
  }

  std::int64_t gather_rows(StreamId stream, Op op, const kernels::GatherArgs& args, std::int64_t grid_cap) override {
    return persistent(stream, op, args.lookup.tiles(), grid_cap, [args](std::int64_t program, std::int64_t grid) {
      kernels::gather_rows_program(args, program, grid);
    });
  }

  void linear(StreamId stream, Op op, const LinearArgs& args) override {
    const cpu::FloatMatrix& matrix = cpu::host_matrix(args.w);
    runtime_->enqueue(
        stream, op, [args, matrix = &matrix](StreamContext& context) { cpu::linear(args, *matrix, context.scratch); });
  }
  void copy(StreamId stream, Op op, std::byte* dst, const std::byte* src, std::size_t bytes) override {
    runtime_->enqueue(stream, op, [dst, src, bytes](StreamContext&) {
      if (bytes > 0) std::memcpy(dst, src, bytes);
    });
  }
  void fill(StreamId stream, Op op, std::byte* dst, std::uint8_t value, std::size_t bytes) override {
    runtime_->enqueue(stream, op, [dst, value, bytes](StreamContext&) {
      if (bytes > 0) std::memset(dst, value, bytes);
    });
  }
  void busy(StreamId stream, Op op, std::int64_t duration_ns) override {
    runtime_->enqueue(stream, op,
                      [duration_ns](StreamContext& context) { burn(duration_ns, context.runtime->status()); });
  }

 private:
  [[nodiscard]] cpu::Quiesce quiesce() const {
    return [runtime = runtime_] { runtime->quiesce(); };
  }
  // A kernel of min(tiles, grid_cap) programs on the workers.
  template <typename Program>
  std::int64_t persistent(StreamId stream, Op op, std::int64_t tiles, std::int64_t grid_cap, Program run_program) {
    if (grid_cap < 1) fail(Exit::failure, "{}: a grid cap of {}; at least 1 is needed", cpu::op_text(op), grid_cap);
    const std::int64_t grid = std::min(tiles, grid_cap);
    runtime_->enqueue(stream, op, [run_program, grid, pool = &pool_](StreamContext&) {
      if (grid == 1) {  // as many threads at work as a worker would make it, without the hand-over
        run_program(0, 1);
      } else {
        pool->run(grid, [&](std::int64_t program) { run_program(program, grid); });
      }
    });
    return grid;
  }
  [[nodiscard]] EventSlot& recorded(EventId event) {
    EventSlot& slot = events_.at(event);
    if (slot.enqueue_ns == 0) fail(Exit::failure, "a wait for event {}, which was never recorded", event);
    return slot;
  }

  DeviceInfo info_;
  cpu::EventPool events_;
  cpu::WorkerPool pool_;
  std::shared_ptr<Runtime> runtime_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  if (options.workers < 1) fail(Exit::failure, "device.cpu_workers is {}; at least 1 is needed", options.workers);
  openblas_set_num_threads(1);  // a GEMM is its stream's work; more threads would compete with the other streams
  return std::make_unique<CpuBackend>(options);
}

}  // namespace eb::backend
