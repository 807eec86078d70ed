#include "harness/rank/bind_process.h"

#include <numaif.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "collectors/system_state.h"
#include "harness/base/error.h"
#include "placement/policy.h"

namespace eb::rank {

namespace {

constexpr const char* kCpus = "CPUs";
constexpr const char* kMemory = "memory policy";

std::string policy_text(const std::vector<int>& nodes) { return fmt::format("bind:{}", placement::node_list(nodes)); }

std::string remedy(int number, const char* call) {
  if (number != EPERM) return "";
  return fmt::format("; this container refuses {} (seccomp): start it with --cap-add SYS_NICE", call);
}

int set_cpus(const std::vector<int>& cpus) {
  const auto count = static_cast<std::size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count), [](cpu_set_t* s) { CPU_FREE(s); });
  if (!set) throw std::bad_alloc();
  const std::size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set.get());
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set.get());
  return ::sched_setaffinity(0, bytes, set.get()) == 0 ? 0 : errno;
}

int set_memory(const std::vector<int>& nodes) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 1024 / kBits> mask{};
  for (const int node : nodes) {
    mask.at(static_cast<std::size_t>(node) / kBits) |= 1UL << (static_cast<std::size_t>(node) % kBits);
  }
  return ::set_mempolicy(MPOL_BIND, mask.data(), 1024 + 1) == 0 ? 0 : errno;
}

}  // namespace

std::vector<control::LostPart> lost_parts(const std::vector<int>& cpus, const std::vector<int>& memory_nodes,
                                          const FoundBinding& found) {
  std::vector<control::LostPart> lost;
  std::vector<int> wanted = cpus;
  std::sort(wanted.begin(), wanted.end());
  if (!cpus.empty() && found.cpus != wanted) {
    lost.push_back({kCpus, fmt::format("CPUs {}: asked, found {}", placement::node_list(wanted),
                                       placement::node_list(found.cpus))});
  }
  if (memory_nodes.empty()) return lost;
  const std::string policy = policy_text(memory_nodes);
  if (found.task_policy.empty()) {
    lost.push_back({kMemory, fmt::format("memory policy {}: asked, but it cannot be read back: {}", policy,
                                         found.task_policy_reason)});
  } else if (found.task_policy != policy) {
    lost.push_back({kMemory, fmt::format("memory policy {}: asked, found {}", policy, found.task_policy)});
  }
  return lost;
}

std::vector<control::LostPart> bind_process(const std::vector<int>& cpus, const std::vector<int>& memory_nodes) {
  std::vector<control::LostPart> lost;
  const auto refused = [&lost](const char* part, const std::string& asked, const char* call, int number) {
    if (number == 0) return false;
    lost.push_back({part, fmt::format("{}: {}: {}{}", asked, call, std::strerror(number), remedy(number, call))});
    return true;
  };
  // A refused part is not read back: it would be named twice.
  const bool no_cpus = cpus.empty() || refused(kCpus, fmt::format("CPUs {}", placement::node_list(cpus)),
                                               "sched_setaffinity", set_cpus(cpus));
  const bool no_memory =
      memory_nodes.empty() || refused(kMemory, fmt::format("memory policy {}", policy_text(memory_nodes)),
                                      "set_mempolicy", set_memory(memory_nodes));
  const collectors::RankState state = collectors::read_rank_state();
  const std::vector<control::LostPart> differing =
      lost_parts(no_cpus ? std::vector<int>{} : cpus, no_memory ? std::vector<int>{} : memory_nodes,
                 {state.cpus, state.task_policy, state.task_policy_reason});
  lost.insert(lost.end(), differing.begin(), differing.end());
  return lost;
}

}  // namespace eb::rank
