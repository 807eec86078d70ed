// Segments of a stream as CUDA graphs.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/cuda/check.h"
#include "harness/backend/cuda/events.h"

namespace eb::backend::cuda {

// One segment is open at a time. The caller shows it every operation of the segment; in a replay the operations are
// not enqueued, only compared with the captured ones, and the graph is launched at the end. Host thread only.
class Segments {
 public:
  explicit Segments(EventPool& events) : events_(events) {}
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  void begin(StreamId id, cudaStream_t stream, const Segment& segment);
  // True where something was launched.
  bool end(StreamId id);
  void drop();
  [[nodiscard]] bool open_on(StreamId id) const noexcept { return mode_ != Mode::none && id == id_; }
  [[nodiscard]] bool capturing() const noexcept { return mode_ == Mode::capture; }

  // An operation with these arguments; false: a graph does it.
  template <typename... Arguments>
  [[nodiscard]] bool enqueue(StreamId id, Op op, const Arguments&... arguments) {
    if (!open_on(id)) return true;
    last_op_ = op;
    mix(static_cast<std::uint64_t>(op.kind));
    (mix(number(arguments)), ...);
    ++operations_;
    return mode_ != Mode::replay;
  }
  void record(EventId event);
  // Of the open segment.
  [[nodiscard]] Op last_op() const noexcept { return last_op_; }

 private:
  enum class Mode { none, first, capture, replay };
  struct Graph {
    bool seen = false;
    std::uint64_t digest = 0;  // of the operations and their arguments
    std::size_t operations = 0;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    std::vector<cudaGraphNode_t> event_nodes;  // in the order of the records
    ~Graph();
  };

  static std::uint64_t number(const void* pointer) noexcept { return reinterpret_cast<std::uintptr_t>(pointer); }
  static std::uint64_t number(std::int64_t value) noexcept { return static_cast<std::uint64_t>(value); }
  static std::uint64_t number(std::size_t value) noexcept { return value; }
  static std::uint64_t number(int value) noexcept { return static_cast<std::uint64_t>(value); }
  static std::uint64_t number(float value) noexcept;
  void mix(std::uint64_t value) noexcept;
  void finish_capture(Graph& graph);
  void launch(Graph& graph);

  EventPool& events_;
  std::map<Segment, Graph> graphs_;
  Mode mode_ = Mode::none;
  StreamId id_ = 0;
  cudaStream_t stream_ = nullptr;
  Segment segment_;
  std::uint64_t digest_ = 0;
  std::size_t operations_ = 0;
  Op last_op_;
  std::vector<EventId> records_;
};

}  // namespace eb::backend::cuda
