#include "harness/backend/fake/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace eb::backend::fake {

std::vector<OperationNode> DependencyGraph::operations() const {
  std::vector<OperationNode> operations;
  // Of each node: the operations that it directly follows, or is.
  std::vector<std::set<std::uint32_t>> reached(nodes.size());
  std::vector<std::vector<bool>> ancestors;  // of each operation, itself not included
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const GraphNode& node = nodes[i];
    std::set<std::uint32_t> before;
    for (const std::uint32_t other : node.after) before.insert(reached[other].begin(), reached[other].end());
    if (node.kind != GraphNode::Kind::operation) {
      reached[i] = std::move(before);
      continue;
    }
    const auto own = static_cast<std::uint32_t>(operations.size());
    std::vector<bool> closure(own, false);
    for (const std::uint32_t other : before) {
      for (std::size_t j = 0; j < ancestors[other].size(); ++j) {
        if (ancestors[other][j]) closure[j] = true;
      }
    }
    OperationNode operation{node.name, node.stream, {}};
    for (const std::uint32_t other : before) {
      if (!closure[other]) operation.after.push_back(other);
    }
    for (const std::uint32_t other : before) closure[other] = true;
    operations.push_back(std::move(operation));
    ancestors.push_back(std::move(closure));
    reached[i] = {own};
  }
  return operations;
}

std::string to_text(const std::vector<OperationNode>& operations) {
  std::string text;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const OperationNode& operation = operations[i];
    text += fmt::format("{} {} @{}", i, operation.name, operation.stream);
    if (!operation.after.empty()) text += fmt::format(" after {}", fmt::join(operation.after, " "));
    text += '\n';
  }
  return text;
}

}  // namespace eb::backend::fake
