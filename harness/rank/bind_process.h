// storage.bind_ranks in the rank's own process: CPUs and memory policy are asked for apart, and each is read back.
#pragma once

#include <string>
#include <vector>

#include "harness/control/messages.h"

namespace eb::rank {

// Binds the calling process (before it starts threads) to `cpus`, and its task policy to `memory_nodes`, as
// `numactl --physcpubind --membind` does; an empty list leaves that part as it is. Returns the parts that were not
// obtained: refused by the kernel (EPERM: the container's seccomp profile), or read back as something else. Empty: all
// was obtained.
[[nodiscard]] std::vector<control::LostPart> bind_process(const std::vector<int>& cpus,
                                                          const std::vector<int>& memory_nodes);

// What a process was found with, at its start or later.
struct FoundBinding {
  std::vector<int> cpus;    // ascending
  std::string task_policy;  // "bind:0"; empty: not known
  std::string task_policy_reason;
};
// The parts of what was asked (empty lists: nothing) that differ from what was found. A task policy that is not known
// is lost: nothing shows that it holds.
[[nodiscard]] std::vector<control::LostPart> lost_parts(const std::vector<int>& cpus,
                                                        const std::vector<int>& memory_nodes,
                                                        const FoundBinding& found);

}  // namespace eb::rank
