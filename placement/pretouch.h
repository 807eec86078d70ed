// Pre-touch: who faults the pages of a table before registration does.
#pragma once

#include <cstddef>

#include "harness/plan/scenario.h"
#include "kernels/pretouch.h"

namespace eb::placement {

// How many threads `storage.pretouch` gives this process: none: 0; leader: 1 in the leader, else 0; parallel: in the
// leader `threads`, or one for each CPU that this process may use where it is 0; else 0. Private backings: every
// process is the leader of its own.
[[nodiscard]] int pretouch_threads(plan::PretouchKind kind, int threads, bool leader);

// Faults [address, address + bytes) for writing with so many threads, content kept. Returns the number of threads that
// worked (0: nothing was touched). `unit`: the page size of the memory, which one thread faults alone (0: any). The
// policy must have been set before. Errors: Error(failure).
inline int pretouch(plan::PretouchKind kind, int threads, bool leader, std::byte* address, std::size_t bytes,
                    std::size_t unit = 0) {
  const int count = pretouch_threads(kind, threads, leader);
  if (count > 0) kernels::pretouch(address, bytes, count, unit);
  return count;
}

}  // namespace eb::placement
