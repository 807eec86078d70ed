#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "harness/backend/cpu/groups.h"
#include "harness/backend/cpu/host_memory.h"
#include "harness/backend/cpu/op_text.h"
#include "harness/backend/fake/fake.h"
#include "harness/backend/fake/stand_in_driver.h"
#include "harness/base/error.h"

namespace eb::backend::fake {

namespace {

using Kind = GraphNode::Kind;

constexpr std::uint32_t kNone = UINT32_MAX;

struct VirtualStream {
  std::string name;
  std::int64_t free_ns = kStartNs;
  std::uint32_t last = kNone;  // its last node of the graph
  std::uint32_t host = kNone;  // the last host wait that its nodes already follow
};

struct VirtualEvent {
  EventTimes times;
  bool recorded = false;
  bool in_segment = false;  // a graph would record it: nobody may wait for it
  std::uint32_t node = kNone;
};

bool is_operation(const std::string& entry) {
  const std::size_t dot = entry.find(".l");
  if (dot != std::string::npos && (dot + 2 == entry.size() || entry.size() > dot + 7 ||
                                   entry.find_first_not_of("0123456789", dot + 2) != std::string::npos)) {
    return false;
  }
  const std::string op = entry.substr(0, dot);
  for (int kind = 0; kind <= static_cast<int>(OpKind::fill); ++kind) {
    if (op == name(static_cast<OpKind>(kind))) return true;
  }
  return false;
}

void check(const Script& script) {
  const auto check_name = [](const std::string& entry) {
    if (!is_operation(entry)) {
      fail(Exit::failure,
           "the fake backend's script names \"{}\", which is no operation; write e.g. lookup or lookup.l14", entry);
    }
  };
  for (const auto& [entry, duration_ns] : script.duration_ns) {
    check_name(entry);
    if (duration_ns < 0)
      fail(Exit::failure, "the fake backend's script gives {} a duration of {} ns", entry, duration_ns);
  }
  if (script.default_duration_ns < 0 || script.host_cost_ns < 0) {
    fail(Exit::failure, "the fake backend's script has a negative default duration or host cost");
  }
  for (const Fault& fault : script.faults) {
    check_name(fault.op);
    if (fault.nth < 0)
      fail(Exit::failure, "the fake backend's script has a fault at call {} of {}", fault.nth, fault.op);
  }
}

class Device final : public FakeBackend {
 public:
  explicit Device(const FakeOptions& options)
      : info_{"fake", "virtual time", options.units, options.numa_node, true},
        script_(options.script),
        calls_(options.script.faults.size(), 0),
        record_graph_(options.record_graph),
        groups_(options.arena, options.groups, options.rank, interrupted_, options.waiting) {}

  [[nodiscard]] const DeviceInfo& device() const noexcept override { return info_; }

  [[nodiscard]] StreamId create_stream(const std::string& name) override {
    streams_.push_back({name});
    return static_cast<StreamId>(streams_.size() - 1);
  }
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes, MemoryKind, const char* what) override {
    return cpu::make_host_buffer(bytes, what, [] {});
  }
  [[nodiscard]] std::unique_ptr<Matrix> upload_matrix(std::span<const Bf16> values, std::int64_t n,
                                                      std::int64_t k) override {
    return cpu::make_host_matrix(values, n, k, [] {});
  }
  [[nodiscard]] std::unique_ptr<Registration> register_table(std::byte* address, std::size_t bytes) override {
    return cpu::make_host_registration(address, bytes, [] {});
  }
  [[nodiscard]] DriverMemory* driver_memory() override { return &driver_; }
  [[nodiscard]] std::unique_ptr<Registration> register_numa(NumaMemory& memory) override {
    memory.allow_device();
    return cpu::make_host_registration(memory.data(), memory.size(), [] {});
  }
  [[nodiscard]] std::unique_ptr<Communicator> communicator(const GroupSpec& group) override;

  [[nodiscard]] EventId new_event() override {
    events_.emplace_back();
    return static_cast<EventId>(events_.size() - 1);
  }
  void reset_events() override {
    run_late();
    events_.clear();
  }
  void record(StreamId stream, EventId event) override;
  void wait(StreamId stream, EventId event) override;
  void host_wait(EventId event) override;
  void synchronize() override;
  [[nodiscard]] EventTimes times(EventId event) const override {
    if (event >= events_.size() || !events_[event].recorded) {
      fail(Exit::failure, "event {} was never recorded: it has no time", event);
    }
    return events_[event].times;
  }

  void hash(StreamId stream, Op op, const kernels::HashArgs& args) override {
    run(stream, op, [args] { kernels::hash_tokens(args, 0, args.tokens); });
  }
  void sort_rows(StreamId stream, Op op, const kernels::LookupArgs& args, std::int32_t* order) override {
    run(stream, op, [args, order] { kernels::sort_rows(args, order); });
  }
  void drop_segments() override { segments_.clear(); }
  std::int64_t lookup(StreamId stream, Op op, const kernels::LookupArgs& args, std::int64_t grid_cap) override {
    outside_segment(stream, cpu::op_text(op));
    if (grid_cap < 1) fail(Exit::failure, "{}: a grid cap of {}; at least 1 is needed", cpu::op_text(op), grid_cap);
    run(stream, op, [args] {
      if (args.tiles() > 0) kernels::lookup_program(args, 0, 1);
    });
    return std::min(args.tiles(), grid_cap);
  }
  std::int64_t gather_rows(StreamId stream, Op op, const kernels::GatherArgs& args, std::int64_t grid_cap) override {
    outside_segment(stream, cpu::op_text(op));
    if (grid_cap < 1) fail(Exit::failure, "{}: a grid cap of {}; at least 1 is needed", cpu::op_text(op), grid_cap);
    run(stream, op, [args] {
      if (args.lookup.tiles() > 0) kernels::gather_rows_program(args, 0, 1);
    });
    return std::min(args.lookup.tiles(), grid_cap);
  }
  void select(StreamId stream, Op op, const kernels::SelectArgs& args) override {
    run(stream, op, [args] { kernels::select_rows(args); });
  }
  void gate(StreamId stream, Op op, const kernels::GateArgs& args) override {
    run(stream, op, [args] { kernels::gate_tokens(args, 0, args.tokens); });
  }
  void linear(StreamId stream, Op op, const LinearArgs& args) override {
    const cpu::FloatMatrix& matrix = cpu::host_matrix(args.w);
    run(stream, op, [this, args, &matrix] { cpu::linear(args, matrix, scratch_); });
  }
  void copy(StreamId stream, Op op, std::byte* dst, const std::byte* src, std::size_t bytes) override {
    run(stream, op, [=] {
      if (bytes > 0) std::memcpy(dst, src, bytes);
    });
  }
  void fill(StreamId stream, Op op, std::byte* dst, std::uint8_t value, std::size_t bytes) override {
    run(stream, op, [=] {
      if (bytes > 0) std::memset(dst, value, bytes);
    });
  }
  void busy(StreamId stream, Op op, std::int64_t duration_ns) override {
    run(
        stream, op, [] {}, duration_ns);
  }

  // Work runs as it comes; the rules of a segment are kept all the same.
  void begin_segment(StreamId stream, const Segment& segment) override {
    if (segment_) fail(Exit::failure, "segment {} begins inside segment {}", segment.piece, segment_->piece);
    segment_ = segment;
    segment_stream_ = stream;
    segment_work_.clear();
  }
  void end_segment(StreamId stream) override {
    if (!segment_ || stream != segment_stream_) fail(Exit::failure, "a segment ends that did not begin");
    const auto [known, fresh] = segments_.try_emplace(*segment_, segment_work_);
    if (!fresh && known->second != segment_work_) {
      fail(Exit::failure, "segment {} of shape {} comes again with other work: {}, was {}", segment_->piece,
           segment_->shape, segment_work_, known->second);
    }
    segment_.reset();
  }

  [[nodiscard]] const DependencyGraph& graph() const noexcept override { return graph_; }
  void clear_graph() override;
  [[nodiscard]] std::int64_t host_now_ns() const noexcept override { return host_ns_; }
  void advance_host(std::int64_t duration_ns) override { host_ns_ += duration_ns; }

  // A collective as an operation; `exchange(recv, stamp)` returns the last stamp.
  using Exchange = std::function<std::int64_t(std::byte* recv, std::int64_t stamp)>;
  void collective(StreamId stream, Op op, std::byte* recv, std::size_t recv_bytes, const Exchange& exchange);

 private:
  using Work = std::function<void()>;

  void outside_segment(StreamId stream, const std::string& what) const {
    if (segment_ && stream == segment_stream_) fail(Exit::failure, "{} inside segment {}", what, segment_->piece);
  }
  [[nodiscard]] VirtualStream& at(StreamId stream) {
    if (stream >= streams_.size()) {
      fail(Exit::failure, "stream {} was asked for; there are {}", stream, streams_.size());
    }
    return streams_[stream];
  }
  [[nodiscard]] VirtualEvent& recorded(EventId event) {
    if (event >= events_.size() || !events_[event].recorded) {
      fail(Exit::failure, "a wait for event {}, which was never recorded", event);
    }
    if (events_[event].in_segment) fail(Exit::failure, "a wait for event {}, which a segment records", event);
    return events_[event];
  }

  void run(StreamId stream, Op op, const Work& work, std::optional<std::int64_t> own_ns = std::nullopt);
  [[nodiscard]] std::int64_t duration(Op op, std::optional<std::int64_t> own_ns) const;
  [[nodiscard]] const Fault* fault(Op op);
  void failed(const VirtualStream& stream, Op op, const std::string& text);
  void run_late();
  void rethrow() const {
    if (failure_) throw Error(Exit::failure, *failure_);
  }
  GraphNode* add_node(Kind kind, StreamId stream);
  std::uint32_t add_host_node(Kind kind, std::vector<std::uint32_t> after);

  DeviceInfo info_;
  StandInDriver driver_;
  Script script_;
  std::vector<std::int64_t> calls_;  // matching calls so far, of each fault
  bool record_graph_;
  std::atomic<bool> interrupted_{false};  // never: nobody could set it while the only thread waits
  cpu::Groups groups_;
  cpu::GemmScratch scratch_;

  std::int64_t host_ns_ = kStartNs;
  std::vector<VirtualStream> streams_;
  std::vector<VirtualEvent> events_;
  std::vector<Work> late_;
  std::optional<std::string> failure_;
  DependencyGraph graph_;
  std::uint32_t host_node_ = kNone;  // last host wait
  std::optional<Segment> segment_;   // open
  StreamId segment_stream_ = 0;
  std::string segment_work_;  // its operations by name, a record as "."
  std::map<Segment, std::string> segments_;
};

class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(Device& device, cpu::Channel& channel) : device_(device), channel_(channel) {}
  [[nodiscard]] int size() const noexcept override { return static_cast<int>(channel_.members()); }
  [[nodiscard]] int index() const noexcept override { return static_cast<int>(channel_.index()); }
  void all_gather(StreamId stream, Op op, const std::byte* send, std::byte* recv, std::size_t bytes) override {
    device_.collective(stream, op, recv, bytes * channel_.members(), [&](std::byte* to, std::int64_t stamp) {
      return channel_.all_gather(op, send, to, bytes, stamp);
    });
  }
  void all_to_all(StreamId stream, Op op, const std::byte* send, std::byte* recv, std::size_t bytes) override {
    device_.collective(stream, op, recv, bytes * channel_.members(), [&](std::byte* to, std::int64_t stamp) {
      return channel_.all_to_all(op, send, to, bytes, stamp);
    });
  }

 private:
  Device& device_;
  cpu::Channel& channel_;
};

std::unique_ptr<Communicator> Device::communicator(const GroupSpec& group) {
  return std::make_unique<FakeCommunicator>(*this, groups_.at(group));
}

void Device::record(StreamId stream, EventId event) {
  VirtualStream& on = at(stream);
  if (event >= events_.size()) {
    fail(Exit::failure, "event {} was asked for, but only {} events were taken since the last reset", event,
         events_.size());
  }
  VirtualEvent& slot = events_[event];
  if (slot.recorded) fail(Exit::failure, "event {} was recorded twice since the last reset; take a new one", event);
  host_ns_ += script_.host_cost_ns;
  slot.recorded = true;
  slot.in_segment = segment_ && stream == segment_stream_;
  if (slot.in_segment) segment_work_ += ". ";
  slot.times = {host_ns_, std::max(on.free_ns, host_ns_)};
  if (GraphNode* node = add_node(Kind::record, stream)) {
    node->event = event;
    node->start_ns = node->end_ns = slot.times.device_ns;
    slot.node = on.last;
  }
}

void Device::wait(StreamId stream, EventId event) {
  outside_segment(stream, "a wait");
  VirtualStream& on = at(stream);
  const VirtualEvent& slot = recorded(event);
  host_ns_ += script_.host_cost_ns;
  const std::int64_t start_ns = std::max(on.free_ns, host_ns_);
  on.free_ns = std::max(start_ns, slot.times.device_ns);
  if (GraphNode* node = add_node(Kind::wait, stream)) {
    node->event = event;
    node->start_ns = start_ns;
    node->end_ns = on.free_ns;
    if (slot.node != kNone) node->after.push_back(slot.node);
  }
}

void Device::host_wait(EventId event) {
  const VirtualEvent& slot = recorded(event);
  run_late();
  host_ns_ = std::max(host_ns_ + script_.host_cost_ns, slot.times.device_ns);
  if (record_graph_) {
    std::vector<std::uint32_t> after;
    if (slot.node != kNone) after.push_back(slot.node);
    graph_.nodes[add_host_node(Kind::host_wait, std::move(after))].event = event;
  }
  rethrow();
}

void Device::synchronize() {
  run_late();
  host_ns_ += script_.host_cost_ns;
  std::vector<std::uint32_t> after;
  for (const VirtualStream& stream : streams_) {
    host_ns_ = std::max(host_ns_, stream.free_ns);
    if (stream.last != kNone) after.push_back(stream.last);
  }
  if (record_graph_) add_host_node(Kind::synchronize, std::move(after));
  rethrow();
}

std::int64_t Device::duration(Op op, std::optional<std::int64_t> own_ns) const {
  auto entry = script_.duration_ns.find(script_name(op));
  if (entry == script_.duration_ns.end()) entry = script_.duration_ns.find(name(op.kind));
  if (entry != script_.duration_ns.end()) return entry->second;
  return own_ns.value_or(script_.default_duration_ns);
}

const Fault* Device::fault(Op op) {
  const Fault* hit = nullptr;
  for (std::size_t i = 0; i < script_.faults.size(); ++i) {
    const Fault& fault = script_.faults[i];
    if (fault.op != name(op.kind) && fault.op != script_name(op)) continue;
    ++calls_[i];
    if (hit == nullptr && (fault.nth == 0 || fault.nth == calls_[i])) hit = &fault;
  }
  return hit;
}

void Device::failed(const VirtualStream& stream, Op op, const std::string& text) {
  if (!failure_) failure_ = fmt::format("stream {}: {}: {}", stream.name, cpu::op_text(op), text);
}

void Device::run(StreamId stream, Op op, const Work& work, std::optional<std::int64_t> own_ns) {
  VirtualStream& on = at(stream);
  if (segment_ && stream == segment_stream_) segment_work_ += script_name(op) + ' ';
  host_ns_ += script_.host_cost_ns;
  const std::int64_t start_ns = std::max(on.free_ns, host_ns_);
  on.free_ns = start_ns + duration(op, own_ns);
  if (GraphNode* node = add_node(Kind::operation, stream)) {
    node->name = script_name(op);
    node->start_ns = start_ns;
    node->end_ns = on.free_ns;
  }
  const Fault* planned = fault(op);
  if (failure_) return;  // after a failure nothing runs, as on a real device
  if (planned == nullptr) {
    try {
      work();
    } catch (const std::exception& error) {
      failed(on, op, error.what());
    }
    return;
  }
  switch (planned->kind) {
    case Fault::Kind::skip:
      return;
    case Fault::Kind::late:
      late_.push_back(work);
      return;
    case Fault::Kind::fail:
      failed(on, op, planned->text);
      return;
  }
}

void Device::collective(StreamId stream, Op op, std::byte* recv, std::size_t recv_bytes, const Exchange& exchange) {
  outside_segment(stream, cpu::op_text(op));
  VirtualStream& on = at(stream);
  host_ns_ += script_.host_cost_ns;
  const std::int64_t start_ns = std::max(on.free_ns, host_ns_);
  const Fault* planned = fault(op);
  std::int64_t last_ns = start_ns;
  if (!failure_ && planned != nullptr && planned->kind == Fault::Kind::fail) failed(on, op, planned->text);
  if (!failure_) {
    try {
      if (planned == nullptr) {
        last_ns = exchange(recv, start_ns);
      } else {
        std::vector<std::byte> result(recv_bytes);
        last_ns = exchange(result.data(), start_ns);
        if (planned->kind == Fault::Kind::late) {
          late_.emplace_back([recv, result = std::move(result)] { std::copy(result.begin(), result.end(), recv); });
        }
      }
    } catch (const std::exception& error) {
      failed(on, op, error.what());
    }
  }
  on.free_ns = last_ns + duration(op, std::nullopt);
  if (GraphNode* node = add_node(Kind::operation, stream)) {
    node->name = script_name(op);
    node->start_ns = start_ns;
    node->end_ns = on.free_ns;
  }
}

void Device::run_late() {
  for (const Work& work : std::exchange(late_, {})) work();
}

GraphNode* Device::add_node(Kind kind, StreamId stream) {
  if (!record_graph_) return nullptr;
  VirtualStream& on = streams_[stream];
  GraphNode node;
  node.kind = kind;
  node.stream = stream;
  node.enqueue_ns = host_ns_;
  if (on.last != kNone) node.after.push_back(on.last);
  if (host_node_ != on.host) node.after.push_back(host_node_);
  on.host = host_node_;
  on.last = static_cast<std::uint32_t>(graph_.nodes.size());
  return &graph_.nodes.emplace_back(std::move(node));
}

std::uint32_t Device::add_host_node(Kind kind, std::vector<std::uint32_t> after) {
  GraphNode node;
  node.kind = kind;
  node.after = std::move(after);
  if (host_node_ != kNone) node.after.push_back(host_node_);
  node.enqueue_ns = node.start_ns = node.end_ns = host_ns_;
  host_node_ = static_cast<std::uint32_t>(graph_.nodes.size());
  graph_.nodes.push_back(std::move(node));
  return host_node_;
}

void Device::clear_graph() {
  graph_.nodes.clear();
  host_node_ = kNone;
  for (VirtualStream& stream : streams_) stream.last = stream.host = kNone;
  for (VirtualEvent& event : events_) event.node = kNone;
}

}  // namespace

std::string script_name(Op op) {
  return op.layer < 0 ? std::string(name(op.kind)) : fmt::format("{}.l{}", name(op.kind), op.layer);
}

std::unique_ptr<FakeBackend> make_fake_backend(const FakeOptions& options) {
  check(options.script);
  return std::make_unique<Device>(options);
}

}  // namespace eb::backend::fake
