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

std::vector<std::string> bind_process(const std::vector<int>& cpus, const std::vector<int>& memory_nodes) {
  std::vector<std::string> lost;
  if (!cpus.empty()) {
    const std::string asked = fmt::format("CPUs {}", placement::node_list(cpus));
    if (const int number = set_cpus(cpus); number != 0) {
      lost.push_back(fmt::format("{}: sched_setaffinity: {}{}", asked, std::strerror(number),
                                 remedy(number, "sched_setaffinity")));
    }
  }
  if (!memory_nodes.empty()) {
    const std::string asked = fmt::format("memory policy bind:{}", placement::node_list(memory_nodes));
    if (const int number = set_memory(memory_nodes); number != 0) {
      lost.push_back(
          fmt::format("{}: set_mempolicy: {}{}", asked, std::strerror(number), remedy(number, "set_mempolicy")));
    }
  }
  if (!lost.empty()) return lost;
  const collectors::RankState state = collectors::read_rank_state();
  std::vector<int> wanted = cpus;
  std::sort(wanted.begin(), wanted.end());
  if (!cpus.empty() && state.cpus != wanted) {
    lost.push_back(fmt::format("CPUs {}: asked and granted, but read back as {}", placement::node_list(wanted),
                               placement::node_list(state.cpus)));
  }
  if (!memory_nodes.empty()) {
    const std::string policy = fmt::format("bind:{}", placement::node_list(memory_nodes));
    if (state.task_policy.empty()) {
      lost.push_back(
          fmt::format("memory policy {}: set, but it cannot be read back: {}", policy, state.task_policy_reason));
    } else if (state.task_policy != policy) {
      lost.push_back(
          fmt::format("memory policy {}: asked and granted, but read back as {}", policy, state.task_policy));
    }
  }
  return lost;
}

}  // namespace eb::rank
