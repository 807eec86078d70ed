#include "harness/backend/cuda/segments.h"

#include <algorithm>
#include <bit>

#include "harness/base/os.h"

namespace eb::backend::cuda {

std::uint64_t Segments::number(float value) noexcept { return std::bit_cast<std::uint32_t>(value); }

// splitmix64's finisher over a running sum: any moved address gives another digest.
void Segments::mix(std::uint64_t value) noexcept {
  std::uint64_t x = digest_ + value + 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  digest_ = x ^ (x >> 31);
}

Segments::Graph::~Graph() {
  if (exec != nullptr) ignore(cudaGraphExecDestroy(exec));
  if (graph != nullptr) ignore(cudaGraphDestroy(graph));
}

Segments::~Segments() {
  if (mode_ != Mode::capture) return;
  cudaGraph_t broken = nullptr;
  ignore(cudaStreamEndCapture(stream_, &broken));
  if (broken != nullptr) ignore(cudaGraphDestroy(broken));
}

void Segments::drop() { graphs_.clear(); }

void Segments::begin(StreamId id, cudaStream_t stream, const Segment& segment) {
  if (mode_ != Mode::none) fail(Exit::failure, "a segment begins inside another one");
  id_ = id;
  stream_ = stream;
  segment_ = segment;
  digest_ = 0;
  operations_ = 0;
  records_.clear();
  const Graph& graph = graphs_[segment];
  // The first visit loads modules and chooses algorithms, which a capture does not allow.
  const Mode mode = !graph.seen ? Mode::first : graph.exec == nullptr ? Mode::capture : Mode::replay;
  if (mode == Mode::capture) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  mode_ = mode;
}

void Segments::record(EventId event) {
  records_.push_back(event);
  if (mode_ == Mode::first) events_.record(event, stream_);
  if (mode_ == Mode::capture) events_.capture(event, stream_);
}

bool Segments::end(StreamId id) {
  if (!open_on(id)) fail(Exit::failure, "a segment ends that did not begin");
  Graph& graph = graphs_.at(segment_);
  if (mode_ == Mode::capture) finish_capture(graph);
  const Mode mode = std::exchange(mode_, Mode::none);
  if (!graph.seen) {
    graph.seen = true;
    graph.digest = digest_;
    graph.operations = operations_;
  } else if (graph.digest != digest_ || graph.operations != operations_) {
    fail(Exit::failure, "segment {} of shape {} comes again with other work: {} operations, {} were captured",
         segment_.piece, segment_.shape, operations_, graph.operations);
  }
  if (mode == Mode::first) return false;
  launch(graph);
  return true;
}

void Segments::finish_capture(Graph& graph) {
  mode_ = Mode::none;
  check(cudaStreamEndCapture(stream_, &graph.graph), "cudaStreamEndCapture");
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph.graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) check(cudaGraphGetNodes(graph.graph, nodes.data(), &count), "cudaGraphGetNodes");
  graph.event_nodes.assign(records_.size(), nullptr);
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    if (type != cudaGraphNodeTypeEventRecord) continue;
    cudaEvent_t event = nullptr;
    check(cudaGraphEventRecordNodeGetEvent(node, &event), "cudaGraphEventRecordNodeGetEvent");
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (events_.at(records_[i]) == event) graph.event_nodes[i] = node;
    }
  }
  if (std::find(graph.event_nodes.begin(), graph.event_nodes.end(), nullptr) != graph.event_nodes.end()) {
    fail(Exit::failure, "segment {}: an event that was captured is not in the graph", segment_.piece);
  }
  check(cudaGraphInstantiate(&graph.exec, graph.graph, 0), "cudaGraphInstantiate");
  mode_ = Mode::capture;
}

void Segments::launch(Graph& graph) {
  if (graph.event_nodes.size() != records_.size()) {
    fail(Exit::failure, "segment {}: {} events, {} were captured", segment_.piece, records_.size(),
         graph.event_nodes.size());
  }
  for (std::size_t i = 0; i < records_.size(); ++i) {
    check(cudaGraphExecEventRecordNodeSetEvent(graph.exec, graph.event_nodes[i], events_.at(records_[i])),
          "cudaGraphExecEventRecordNodeSetEvent");
  }
  const std::int64_t now = now_ns();
  for (const EventId event : records_) events_.launched(event, now);
  check(cudaGraphLaunch(graph.exec, stream_), "cudaGraphLaunch");
}

}  // namespace eb::backend::cuda
