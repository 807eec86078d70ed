// The seam between the step pipeline and hardware. The pipeline is written once over this interface and runs on the CPU
// (threads), on CUDA and on a fake device in virtual time. Nothing above this header includes a CUDA header.
//
// Threads: one host thread (the rank's) calls everything here. Work on a stream runs in order; streams are ordered
// among each other only by record() and wait(). Errors of asynchronous work surface from the next host_wait() or
// synchronize() as Error(failure).
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/backend/numa/numa_memory.h"
#include "harness/base/bf16.h"
#include "kernels/gate.h"
#include "kernels/gather_rows.h"
#include "kernels/hash.h"
#include "kernels/lookup.h"
#include "kernels/select.h"

namespace eb::backend {

// What an operation is: names it in errors, NVTX ranges, the fake's script and the dependency graph.
enum class OpKind : std::uint8_t {
  hash,
  id_exchange,
  sort,
  lookup,
  row_exchange,
  row_select,
  gather,
  gather_select,
  wkv,
  wkv_gather,
  wkv_select,
  gate,
  backbone,
  expert_exchange,
  control_gather,
  inject,
  copy,
  gather_rows,
  fill,
};
[[nodiscard]] const char* name(OpKind kind) noexcept;

struct Op {
  OpKind kind{};
  std::int16_t layer = -1;  // backbone layer, -1 = none
};

struct DeviceInfo {
  std::string backend;  // cpu, cuda, fake
  std::string name;
  int units = 0;  // SMs; CPU: workers
  int numa_node = -1;
  bool emulated_time = false;
  // Known once the communicators exist: messages go through host memory, since ranks of a group share this device, and
  // so its kernels run in turns. No timing verdict is given then.
  bool host_staged = false;
  bool time_sliced = false;
  std::int64_t clock_error_ns = 0;  // by which device times may be off the host's clock
  std::int64_t clock_tick_ns = 1;   // resolution of device times: a shorter difference says nothing
  bool units_are_threads = true;    // units compete for the host's CPUs
  // Of a GPU; empty and 0 elsewhere.
  std::string uuid{};
  std::string bus_id{};        // "0000:18:00.0"
  std::string cuda_driver{};   // highest CUDA version that the driver supports: "13.0"
  std::string cuda_runtime{};  // of this program
  std::string nccl{};          // once a group uses it
  std::int64_t memory_bytes = 0;
};

// What the device gives a lookup's kernel.
struct LookupResources {
  int threads = 0;            // of a program
  int registers = 0;          // of a thread
  int programs_per_unit = 0;  // that fit at once: the theoretical occupancy
  int unit_threads = 0;       // most threads of a unit
};

// What to look on with. Only ever in a slot whose times enter no figure.
struct Observation {
  bool ranges = false;  // names of the work for a profiler that is attached (NVTX, domain engram-bench)
  bool spans = false;   // kernels as the device ran them
  bool units = false;   // on which SMs each lookup ran
};

// A kernel, copy or fill as the device ran it.
struct KernelSpan {
  std::string name;           // the kernel's own; "copy", "fill"
  std::optional<Op> op;       // what it was for; of a graph: the last operation of the segment; none: not known
  std::int64_t start_ns = 0;  // on the ranks' time base
  std::int64_t end_ns = 0;
  std::uint32_t stream = 0;  // the device's number
  bool in_graph = false;
  std::int32_t grid = 0;     // blocks; 0: no kernel
  std::int32_t threads = 0;  // of a block
  std::int32_t registers = 0;
};

struct Observed {
  std::vector<KernelSpan> spans;             // by start
  std::string no_spans;                      // why there are none
  std::int64_t clock_error_ns = 0;           // by which spans may be off the host's clock
  std::int64_t dropped = 0;                  // spans that the tool lost
  std::map<int, std::int64_t> lookup_units;  // by layer: distinct SMs that its last lookup ran on
};

// A stretch of one stream's work that comes again and again with the same arguments. Segments with equal keys are the
// same work; memory contents may differ, addresses and sizes may not.
struct Segment {
  std::uint32_t shape = 0;  // of the step: one number for all steps with the same token counts
  std::uint16_t token_slot = 0;
  std::uint16_t piece = 0;  // of the step
  friend auto operator<=>(const Segment&, const Segment&) = default;
};

using EventId = std::uint32_t;
using StreamId = std::uint32_t;

struct EventTimes {
  std::int64_t enqueue_ns = 0;  // host clock, when record() was called
  std::int64_t device_ns = 0;   // execution time on the rank's time base
};

// A weight matrix in the backend's own storage: [out_features n][in_features k], row-major, BF16 values.
class Matrix {
 public:
  virtual ~Matrix() = default;
  [[nodiscard]] virtual std::int64_t n() const noexcept = 0;
  [[nodiscard]] virtual std::int64_t k() const noexcept = 0;
};

// y[m][n] (+)= x[m][k] * w^T; leading dimensions in elements. accumulate_scale == 0: y = product; else
// y = bf16(y + accumulate_scale * product). Products and sums in float32, one rounding.
struct LinearArgs {
  const Bf16* x = nullptr;
  std::int64_t ldx = 0;
  const Matrix* w = nullptr;
  Bf16* y = nullptr;
  std::int64_t ldy = 0;
  std::int64_t m = 0;
  float accumulate_scale = 0;
};

enum class MemoryKind { device, pinned_host };

// Device or pinned memory; freed on destruction. Zero filled.
class Buffer {
 public:
  virtual ~Buffer() = default;
  [[nodiscard]] virtual std::byte* data() const noexcept = 0;
  [[nodiscard]] virtual std::size_t size() const noexcept = 0;
  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data());
  }
};

// A registered table mapping: what kernels read through. Unregisters on destruction.
class Registration {
 public:
  virtual ~Registration() = default;
  [[nodiscard]] virtual const std::byte* device_address() const noexcept = 0;
};

// Collectives over one group. Bytes are per rank and equal for all. Calls are stream-ordered on `stream`; every member
// makes the same calls in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int size() const noexcept = 0;
  [[nodiscard]] virtual int index() const noexcept = 0;
  // recv[size][bytes], rank-major.
  virtual void all_gather(StreamId stream, Op op, const std::byte* send, std::byte* recv, std::size_t bytes) = 0;
  // send[size][bytes] -> recv[size][bytes].
  virtual void all_to_all(StreamId stream, Op op, const std::byte* send, std::byte* recv, std::size_t bytes) = 0;
};

struct GroupSpec {
  std::string name;        // "tp", "edp", "ep"; with the members it identifies the group
  std::vector<int> ranks;  // members, ascending
  int index = 0;           // own place in `ranks`
};

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual const DeviceInfo& device() const noexcept = 0;

  [[nodiscard]] virtual StreamId create_stream(const std::string& name) = 0;
  [[nodiscard]] virtual std::unique_ptr<Buffer> allocate(std::size_t bytes, MemoryKind kind, const char* what) = 0;
  [[nodiscard]] virtual std::unique_ptr<Matrix> upload_matrix(std::span<const Bf16> values, std::int64_t n,
                                                              std::int64_t k) = 0;
  // Registers a table mapping for reading by the device. On the CPU: faults every page for writing, as cudaHostRegister
  // does. Errors: Error(failure).
  [[nodiscard]] virtual std::unique_ptr<Registration> register_table(std::byte* address, std::size_t bytes) = 0;
  // storage.backing cuda-host-numa: the driver that makes and passes on such memory; null: this backend has none.
  // Errors: as cuda::make_driver_memory.
  [[nodiscard]] virtual DriverMemory* driver_memory() { return nullptr; }
  // Lets the device read `memory`, which is mapped; it stays the caller's and outlives the registration. Errors:
  // Error(failure).
  [[nodiscard]] virtual std::unique_ptr<Registration> register_numa(NumaMemory& memory);
  [[nodiscard]] virtual std::unique_ptr<Communicator> communicator(const GroupSpec& group) = 0;

  // Events. A slot's events are taken one by one and all given back by reset_events() once everything is synchronised.
  [[nodiscard]] virtual EventId new_event() = 0;
  virtual void reset_events() = 0;
  virtual void record(StreamId stream, EventId event) = 0;
  virtual void wait(StreamId stream, EventId event) = 0;  // the stream waits; `event` was recorded before
  virtual void host_wait(EventId event) = 0;
  virtual void synchronize() = 0;                                   // all streams
  [[nodiscard]] virtual EventTimes times(EventId event) const = 0;  // after it completed

  // Work.
  virtual void hash(StreamId stream, Op op, const kernels::HashArgs& args) = 0;
  virtual void sort_rows(StreamId stream, Op op, const kernels::LookupArgs& args, std::int32_t* order) = 0;
  // Grid = min(tiles, grid_cap), returned.
  virtual std::int64_t lookup(StreamId stream, Op op, const kernels::LookupArgs& args, std::int64_t grid_cap) = 0;
  // The bare row gather over the rows of `args.lookup`; grid as lookup().
  virtual std::int64_t gather_rows(StreamId stream, Op op, const kernels::GatherArgs& args, std::int64_t grid_cap) = 0;
  virtual void select(StreamId stream, Op op, const kernels::SelectArgs& args) = 0;
  virtual void gate(StreamId stream, Op op, const kernels::GateArgs& args) = 0;
  virtual void linear(StreamId stream, Op op, const LinearArgs& args) = 0;
  virtual void copy(StreamId stream, Op op, std::byte* dst, const std::byte* src, std::size_t bytes) = 0;
  virtual void fill(StreamId stream, Op op, std::byte* dst, std::uint8_t value, std::size_t bytes) = 0;
  // Keeps the stream busy for about `duration_ns` with real work: injected effects and faults, never arithmetic on
  // times.
  virtual void busy(StreamId stream, Op op, std::int64_t duration_ns) = 0;

  // Nothing where it has no meaning.
  [[nodiscard]] virtual std::optional<LookupResources> lookup_resources(const kernels::LookupArgs& /*args*/,
                                                                        std::int64_t /*grid_cap*/) {
    return std::nullopt;
  }

  // Looking on, between two synchronisations. What a backend cannot see is not there, with the reason.
  virtual void begin_observation(const Observation& /*what*/) {}
  [[nodiscard]] virtual Observed end_observation();

  // Device graphs (prefetch.graph: piecewise). Between the two calls only work and records of `stream` come: no wait,
  // no collective, and no record that a stream or the host waits for. The first visit of a segment runs plainly, the
  // second is captured, all later ones replay the graph, with their own events. Errors: Error(failure) where a
  // segment comes again with other work or other addresses. Backends without graphs run the work as it comes.
  virtual void begin_segment(StreamId /*stream*/, const Segment& /*segment*/) {}
  virtual void end_segment(StreamId /*stream*/) {}
  // Before memory that segments use is freed; everything is synchronised.
  virtual void drop_segments() {}
  // Kernels, copies, fills and graphs given to the device so far; nothing where they are not counted.
  [[nodiscard]] virtual std::optional<std::int64_t> launches() const { return std::nullopt; }
};

// The shared memory through which CPU (and fake) ranks of one host exchange messages; made by the supervisor, mapped by
// every rank. The layout is a function of (ranks, groups), the same in every process.
struct Arena {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
};
// Bytes the supervisor must provide for `groups`.
[[nodiscard]] std::size_t arena_bytes(std::span<const GroupSpec> groups);

struct CpuOptions {
  int workers = 1;     // device.cpu_workers: programs that run at once
  int numa_node = -1;  // the rank's assigned node
  Arena arena;
  std::vector<GroupSpec> groups;  // all groups of the run (index unused), in the order the arena was laid out
  int rank = 0;
  // Counted up while a stream waits for a peer in a collective, down after; null: nobody watches.
  std::atomic<std::uint32_t>* waiting = nullptr;
};
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

}  // namespace eb::backend
