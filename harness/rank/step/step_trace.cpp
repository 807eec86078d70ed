#include "harness/rank/step/step_trace.h"

#include <map>
#include <nlohmann/json.hpp>

namespace eb::rank {

std::string trace_json(const backend::Observed& seen) {
  using nlohmann::ordered_json;
  std::map<std::string, std::size_t> places;
  ordered_json names = ordered_json::array();
  ordered_json spans = ordered_json::array();
  for (const backend::KernelSpan& span : seen.spans) {
    const auto [known, fresh] = places.try_emplace(span.name, places.size());
    if (fresh) names.push_back(span.name);
    spans.push_back({known->second, span.op ? ordered_json(name(span.op->kind)) : ordered_json(),
                     span.op && span.op->layer >= 0 ? ordered_json(span.op->layer) : ordered_json(), span.start_ns,
                     span.end_ns, span.stream, span.in_graph, span.grid, span.threads, span.registers});
  }
  const ordered_json trace = {
      {"clock_error_ns", seen.clock_error_ns},
      {"dropped", seen.dropped},
      {"reason", seen.no_spans.empty() ? ordered_json() : ordered_json(seen.no_spans)},
      {"columns",
       {"name", "op", "layer", "start_ns", "end_ns", "stream", "in_graph", "blocks", "threads", "registers"}},
      {"names", std::move(names)},
      {"spans", std::move(spans)}};
  return trace.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace eb::rank
