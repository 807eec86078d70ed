// storage.bind_ranks in the rank's own process: CPUs and memory policy are asked for apart, and each is read back.
#pragma once

#include <string>
#include <vector>

namespace eb::rank {

// Binds the calling process (before it starts threads) to `cpus`, and its task policy to `memory_nodes`, as
// `numactl --physcpubind --membind` does; an empty list leaves that part as it is. Returns the parts that were not
// obtained, one line each: refused by the kernel (EPERM: the container's seccomp profile), or read back as something
// else. Empty: all was obtained.
[[nodiscard]] std::vector<std::string> bind_process(const std::vector<int>& cpus, const std::vector<int>& memory_nodes);

}  // namespace eb::rank
