// What a traced slot's device did, as JSON text (docs/results.md, trace).
#pragma once

#include <string>

#include "harness/backend/backend.h"

namespace eb::rank {

// {clock_error_ns, dropped, reason, columns, names, spans}: spans are rows of `columns`; names are kept once, and a
// span has its name's index. `reason` is why there are no spans, else null.
[[nodiscard]] std::string trace_json(const backend::Observed& seen);

}  // namespace eb::rank
