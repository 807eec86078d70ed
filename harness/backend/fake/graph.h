// What a program asked of a backend, as a graph: operations, records and waits with what each must come after. Lets a
// test show that instrumentation (records nobody waits for) adds no dependency.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/backend/backend.h"

namespace eb::backend::fake {

struct GraphNode {
  enum class Kind { operation, record, wait, host_wait, synchronize };
  Kind kind{};
  std::string name;  // operation: "lookup.l14"; else empty
  StreamId stream = 0;
  EventId event = 0;                 // record, wait, host_wait
  std::vector<std::uint32_t> after;  // nodes that it directly follows: same stream, event, or the host's waiting
  std::int64_t enqueue_ns = 0;       // virtual times
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

// An operation with its dependencies reduced to operations.
struct OperationNode {
  std::string name;
  StreamId stream = 0;
  std::vector<std::uint32_t> after;  // indices of operations, ascending; none follows from another one in the list
  friend bool operator==(const OperationNode&, const OperationNode&) = default;
};

class DependencyGraph {
 public:
  std::vector<GraphNode> nodes;  // in the order of the calls

  // The operations in the order of the calls, records and waits dissolved into dependencies, transitive ones left out.
  // Two programs ask for the same order of the same work exactly when these are equal. Quadratic memory in bits:
  // 10,000 operations take 12 MB.
  [[nodiscard]] std::vector<OperationNode> operations() const;
};

// One line an operation, for readable differences: "3 lookup.l14 @1 after 0 2".
[[nodiscard]] std::string to_text(const std::vector<OperationNode>& operations);

}  // namespace eb::backend::fake
