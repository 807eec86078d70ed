// The module's Backend: streams, events and kernels of one device.
#include <algorithm>
#include <cctype>
#include <mutex>

#include "harness/backend/cpu/groups.h"
#include "harness/backend/cpu/op_text.h"
#include "harness/backend/cuda/check.h"
#include "harness/backend/cuda/communicators.h"
#include "harness/backend/cuda/cuda.h"
#include "harness/backend/cuda/driver.h"
#include "harness/backend/cuda/events.h"
#include "harness/backend/cuda/linear.h"
#include "harness/backend/cuda/memory.h"
#include "harness/backend/cuda/observer.h"
#include "harness/backend/cuda/segments.h"
#include "harness/base/os.h"
#include "kernels/cuda.h"

namespace eb::backend::cuda {

namespace {

// "0000:18:00.0", in the form that sysfs has; empty where the runtime does not say.
std::string device_bus_id(int device) {
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device) != cudaSuccess) return "";
  std::string id = bus_id;
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return id;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// As nvidia-smi writes it.
std::string uuid_text(const std::array<char, 16>& bytes) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  }
  return text;
}

// What host functions of streams failed with; surfaces at the next wait of the host. Thread-safe.
class LateFailure {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = text;
  }
  void rethrow() const {
    const std::lock_guard lock(mutex_);
    if (!text_.empty()) throw Error(Exit::failure, text_);
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const Options& options)
      : device_index_(options.device), groups_(options.arena, options.groups, options.rank, stopped_, options.waiting) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, options.device), fmt::format("device {}", options.device));
    device_.backend = "cuda";
    device_.name = properties.name;
    device_.units = properties.multiProcessorCount;
    device_.numa_node = pci_numa_node(device_bus_id(options.device));
    device_.clock_error_ns = events_.base_error_ns();
    device_.units_are_threads = false;
    device_.clock_tick_ns = 500;  // the resolution that CUDA states for its events
    std::copy_n(properties.uuid.bytes, uuid_.size(), uuid_.begin());
    device_.uuid = uuid_text(uuid_);
    device_.bus_id = device_bus_id(options.device);
    device_.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    int version = 0;
    if (cudaDriverGetVersion(&version) == cudaSuccess) device_.cuda_driver = version_text(version);
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) device_.cuda_runtime = version_text(version);
    unit_threads_ = properties.maxThreadsPerMultiProcessor;
  }
  ~CudaBackend() override {
    stopped_ = true;
    groups_.interrupt();
    ignore(cudaDeviceSynchronize());
    segments_.drop();
    for (void* scratch : scratch_) ignore(cudaFree(scratch));
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  [[nodiscard]] const DeviceInfo& device() const noexcept override { return device_; }

  [[nodiscard]] StreamId create_stream(const std::string& /*name*/) override {
    streams_.push_back(std::make_unique<OwnedStream>());
    scratch_.push_back(nullptr);
    scratch_bytes_.push_back(0);
    return static_cast<StreamId>(streams_.size() - 1);
  }
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes, MemoryKind kind, const char* what) override {
    return make_buffer(bytes, kind, what);
  }
  [[nodiscard]] std::unique_ptr<Matrix> upload_matrix(std::span<const Bf16> values, std::int64_t n,
                                                      std::int64_t k) override {
    return make_device_matrix(values, n, k);
  }
  [[nodiscard]] std::unique_ptr<Registration> register_table(std::byte* address, std::size_t bytes) override {
    return register_mapping(address, bytes);
  }
  [[nodiscard]] DriverMemory* driver_memory() override {
    if (!driver_) driver_ = make_driver_memory(device_index_);
    return driver_.get();
  }
  [[nodiscard]] std::unique_ptr<Registration> register_numa(NumaMemory& memory) override {
    memory.allow_device();
    return view_numa_memory(memory.data(), memory.size());
  }

  [[nodiscard]] std::unique_ptr<Communicator> communicator(const GroupSpec& group) override {
    cpu::Channel& channel = groups_.at(group);
    const StreamOf of = [this](StreamId stream) { return at(stream); };
    // All members learn all devices: two ranks on one device cannot share an NCCL communicator.
    std::vector<std::array<char, 16>> devices(channel.members());
    channel.all_gather({OpKind::copy, -1}, reinterpret_cast<const std::byte*>(uuid_.data()),
                       reinterpret_cast<std::byte*>(devices.data()), uuid_.size(), 0);
    std::sort(devices.begin(), devices.end());
    const bool shared = std::adjacent_find(devices.begin(), devices.end()) != devices.end();
    if (channel.members() > 1 && !shared) {
#ifdef ENGRAM_BENCH_NCCL
      device_.nccl = nccl_version();
      return make_nccl(channel, of);
#else
      fail(Exit::failure, "group {}: this build has no NCCL (-Dnccl), which collectives between GPUs need", group.name);
#endif
    }
    device_.host_staged = device_.host_staged || shared;
    device_.time_sliced = device_.time_sliced || shared;
    return make_host_staged(channel, of, [this](const std::string& text) { late_.set(text); });
  }

  [[nodiscard]] EventId new_event() override { return events_.take(); }
  void reset_events() override {
    events_.reset();
    device_.clock_error_ns = std::max(device_.clock_error_ns, events_.base_error_ns());
  }
  void record(StreamId stream, EventId event) override {
    if (segments_.open_on(stream)) {
      segments_.record(event);
    } else {
      events_.record(event, at(stream));
    }
  }
  void wait(StreamId stream, EventId event) override {
    if (segments_.open_on(stream)) fail(Exit::failure, "a stream waits for event {} inside a segment", event);
    if (!events_.recorded(event)) fail(Exit::failure, "a stream waits for event {}, which was not recorded", event);
    check(cudaStreamWaitEvent(at(stream), events_.at(event), 0), "cudaStreamWaitEvent");
  }
  void host_wait(EventId event) override {
    check(cudaEventSynchronize(events_.at(event)), "wait for an event");
    late_.rethrow();
  }
  void synchronize() override {
    check(cudaDeviceSynchronize(), "wait for the device");
    late_.rethrow();
  }
  [[nodiscard]] EventTimes times(EventId event) const override { return events_.times(event); }

  void hash(StreamId stream, Op op, const kernels::HashArgs& args) override {
    const Watched watched(observer_, op);
    if (!segments_.enqueue(stream, op, args.context, args.position, args.ids, args.tokens)) return;
    launched(kernels::hash_cuda(args, at(stream)), op);
  }
  void sort_rows(StreamId stream, Op op, const kernels::LookupArgs& args, std::int32_t* order) override {
    no_segment(stream, op);
    const Watched watched(observer_, op);
    const std::size_t bytes = kernels::sort_rows_scratch_bytes(args.rows());
    launched(kernels::sort_rows_cuda(args, order, scratch(stream, bytes), bytes, at(stream)), op);
  }
  std::int64_t lookup(StreamId stream, Op op, const kernels::LookupArgs& args, std::int64_t grid_cap) override {
    no_segment(stream, op);
    const Watched watched(observer_, op);
    std::int64_t grid = 0;
    std::uint32_t* units = observer_.units_of(op.layer, at(stream));
    launched(kernels::lookup_cuda(args, grid_cap, at(stream), &grid, units), op);
    return grid;
  }
  std::int64_t gather_rows(StreamId stream, Op op, const kernels::GatherArgs& args, std::int64_t grid_cap) override {
    no_segment(stream, op);
    std::int64_t grid = 0;
    launched(kernels::gather_rows_cuda(args, grid_cap, at(stream), &grid), op);
    return grid;
  }
  void select(StreamId stream, Op op, const kernels::SelectArgs& args) override {
    const Watched watched(observer_, op);
    if (!segments_.enqueue(stream, op, args.src, args.dst, args.tokens, args.first_token, args.valid_tokens)) return;
    launched(kernels::select_cuda(args, at(stream)), op);
  }
  void gate(StreamId stream, Op op, const kernels::GateArgs& args) override {
    const Watched watched(observer_, op);
    if (!segments_.enqueue(stream, op, args.hidden, args.kv, args.q, args.k, args.masked, args.tokens)) return;
    launched(kernels::gate_cuda(args, at(stream)), op);
  }
  void linear(StreamId stream, Op op, const LinearArgs& args) override {
    const Watched watched(observer_, op);
    if (linear_stream_ && *linear_stream_ != stream) {
      fail(Exit::failure, "{}: products run on one stream, which owns their workspace", cpu::op_text(op));
    }
    linear_stream_ = stream;
    if (!segments_.enqueue(stream, op, args.x, args.w, args.y, args.m, args.ldx, args.ldy, args.accumulate_scale)) {
      return;
    }
    const std::int64_t kernels = linear_.run(args, at(stream));
    if (!segments_.capturing()) launches_ += kernels;
  }
  void copy(StreamId stream, Op op, std::byte* dst, const std::byte* src, std::size_t bytes) override {
    const Watched watched(observer_, op);
    if (!segments_.enqueue(stream, op, dst, src, bytes)) return;
    launched(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, at(stream)), op);
  }
  void fill(StreamId stream, Op op, std::byte* dst, std::uint8_t value, std::size_t bytes) override {
    const Watched watched(observer_, op);
    if (!segments_.enqueue(stream, op, dst, static_cast<int>(value), bytes)) return;
    launched(cudaMemsetAsync(dst, value, bytes, at(stream)), op);
  }
  void busy(StreamId stream, Op op, std::int64_t duration_ns) override {
    const Watched watched(observer_, op);
    if (!segments_.enqueue(stream, op, duration_ns)) return;
    launched(kernels::busy_cuda(duration_ns, at(stream)), op);
  }

  [[nodiscard]] std::optional<LookupResources> lookup_resources(const kernels::LookupArgs& args,
                                                                std::int64_t grid_cap) override {
    if (args.rows() == 0) return std::nullopt;
    kernels::LookupOccupancy found;
    check(kernels::lookup_occupancy(args, grid_cap, &found), "occupancy of the lookup kernel");
    return LookupResources{found.threads, found.registers, found.blocks_per_sm, unit_threads_};
  }
  void begin_segment(StreamId stream, const Segment& segment) override { segments_.begin(stream, at(stream), segment); }
  void end_segment(StreamId stream) override {
    const Watched watched(observer_, segments_.last_op());
    if (segments_.end(stream)) ++launches_;
  }
  void begin_observation(const Observation& what) override { observer_.begin(what); }
  [[nodiscard]] Observed end_observation() override {
    synchronize();
    return observer_.end();
  }
  void drop_segments() override { segments_.drop(); }
  [[nodiscard]] std::optional<std::int64_t> launches() const override { return launches_; }

 private:
  [[nodiscard]] cudaStream_t at(StreamId stream) const {
    if (stream >= streams_.size()) fail(Exit::failure, "stream {} does not exist", stream);
    return streams_[stream]->get();
  }
  void launched(cudaError_t error, Op op) {
    if (!segments_.capturing()) ++launches_;  // a segment is captured without a launch on another stream
    if (error != cudaSuccess) fail_cuda(error, cpu::op_text(op));
  }
  void no_segment(StreamId stream, Op op) const {
    if (segments_.open_on(stream)) fail(Exit::failure, "{} inside a segment: lookups stay outside", cpu::op_text(op));
  }
  // Of one stream, so that its users are in order. Grows outside of timed slots: warm-up runs the same shapes.
  std::byte* scratch(StreamId stream, std::size_t bytes) {
    if (bytes > scratch_bytes_.at(stream)) {
      check(cudaStreamSynchronize(at(stream)), "wait before the sort's scratch memory grows");
      if (scratch_[stream] != nullptr) ignore(cudaFree(std::exchange(scratch_[stream], nullptr)));
      check(cudaMalloc(&scratch_[stream], bytes), "scratch memory of the sort");
      scratch_bytes_[stream] = bytes;
    }
    return static_cast<std::byte*>(scratch_[stream]);
  }

  int device_index_;
  DeviceInfo device_;
  std::array<char, 16> uuid_{};
  std::atomic<bool> stopped_{false};
  cpu::Groups groups_;
  LateFailure late_;
  EventPool events_;
  std::unique_ptr<DriverMemory> driver_;
  Observer observer_;
  Segments segments_{events_};
  std::int64_t launches_ = 0;
  int unit_threads_ = 0;
  Linear linear_;
  std::optional<StreamId> linear_stream_;
  std::vector<std::unique_ptr<OwnedStream>> streams_;
  std::vector<void*> scratch_;
  std::vector<std::size_t> scratch_bytes_;
};

}  // namespace

}  // namespace eb::backend::cuda

extern "C" {

#pragma GCC visibility push(default)

void engram_bench_cuda_probe(eb::backend::cuda::Probe* result) {
  const cudaError_t error = cudaGetDeviceCount(&result->devices);
  if (error == cudaSuccess && result->devices > 0) {
    for (int i = 0; i < result->devices; ++i) {
      result->numa_nodes.push_back(eb::pci_numa_node(eb::backend::cuda::device_bus_id(i)));
      cudaDeviceProp properties{};
      const bool known = cudaGetDeviceProperties(&properties, i) == cudaSuccess;
      result->memory_bytes.push_back(known ? static_cast<std::int64_t>(properties.totalGlobalMem) : 0);
    }
    return;
  }
  result->devices = 0;
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    result->reason = "no CUDA driver is loaded on this machine";
  } else if (error == cudaErrorInsufficientDriver || driver < runtime / 1000 * 1000) {
    result->reason = fmt::format("the driver supports CUDA {}.{}, this program needs {}.{}: update the driver",
                                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  } else {
    result->reason = fmt::format("no device is visible ({})", cudaGetErrorString(error));
  }
  cudaGetLastError();
}

void engram_bench_cuda_make_backend(const eb::backend::cuda::Options* options,
                                    std::unique_ptr<eb::backend::Backend>* result) {
  using namespace eb::backend::cuda;
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  if (options->device < 0 || options->device >= devices) {
    eb::fail(eb::Exit::skipped, "device {} was asked for, this machine has {} (0 to {})", options->device, devices,
             devices - 1);
  }
  check(cudaSetDevice(options->device), "cudaSetDevice");
  *result = std::make_unique<CudaBackend>(*options);
}

#pragma GCC visibility pop

}  // extern "C"
