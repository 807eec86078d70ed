#include "placement/policy.h"

#include <numaif.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>

#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::placement {

namespace {

using plan::PolicyKind;

#ifndef MPOL_PREFERRED_MANY
constexpr int MPOL_PREFERRED_MANY = 5;
#endif
constexpr int kWeightedInterleave = 6;                         // Linux 6.9; libnuma's header may be older
constexpr int kModeFlags = (1 << 15) | (1 << 14) | (1 << 13);  // static, relative, numa balancing

// 1024 nodes: the kernel's largest configuration (NODES_SHIFT 10). get_mempolicy wants room for all it was built with.
constexpr int kMaxNodes = 1024;
constexpr int kBitsPerWord = static_cast<int>(sizeof(unsigned long) * CHAR_BIT);

struct NodeMask {
  std::vector<unsigned long> words = std::vector<unsigned long>(kMaxNodes / kBitsPerWord, 0);

  // The kernel reads one bit less than `maxnode` says.
  static constexpr unsigned long max_node() { return kMaxNodes + 1; }
  void set(int node) {
    words[static_cast<std::size_t>(node / kBitsPerWord)] |= 1UL << static_cast<unsigned>(node % kBitsPerWord);
  }
  [[nodiscard]] std::vector<int> list() const {
    std::vector<int> nodes;
    for (int node = 0; node < kMaxNodes; ++node) {
      if ((words[static_cast<std::size_t>(node / kBitsPerWord)] >> static_cast<unsigned>(node % kBitsPerWord)) & 1UL) {
        nodes.push_back(node);
      }
    }
    return nodes;
  }
};

const char* word(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::none:
      return "default";
    case PolicyKind::stock:
      return "stock";
    case PolicyKind::bind:
      return "bind";
    case PolicyKind::preferred:
      return "preferred";
    case PolicyKind::interleave:
      return "interleave";
    case PolicyKind::weighted:
      return "weighted";
    case PolicyKind::consumer:
      return "consumer";
  }
  return "?";
}

int mode_of(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::bind:
      return MPOL_BIND;
    case PolicyKind::preferred:
      return MPOL_PREFERRED;
    case PolicyKind::interleave:
      return MPOL_INTERLEAVE;
    case PolicyKind::weighted:
      return kWeightedInterleave;
    default:
      return MPOL_DEFAULT;
  }
}

std::string mode_text(int mode, const std::vector<int>& nodes) {
  switch (mode & ~kModeFlags) {
    case MPOL_DEFAULT:
      return "default";
    case MPOL_LOCAL:
      return "local";
    case MPOL_PREFERRED:
      return nodes.empty() ? "local" : "preferred:" + node_list(nodes);
    case MPOL_BIND:
      return "bind:" + node_list(nodes);
    case MPOL_INTERLEAVE:
      return "interleave:" + node_list(nodes);
    case MPOL_PREFERRED_MANY:
      return "preferred-many:" + node_list(nodes);
    case kWeightedInterleave:
      return "weighted-interleave:" + node_list(nodes);
    default:
      return fmt::format("mode-{}:{}", mode, node_list(nodes));
  }
}

// What to do about the errno of a policy call.
std::string remedy(int number) {
  switch (number) {
    case EPERM:
      return "; this container refuses the call (seccomp): start it with --cap-add SYS_NICE or a seccomp profile that "
             "allows mbind, get_mempolicy and move_pages, or use storage.policy none";
    case ENOSYS:
      return "; this kernel has no NUMA policies (CONFIG_NUMA): use storage.policy none";
    case EIO:
      return "; pages of the mapping were touched before the policy was set and lie on other nodes";
    case EINVAL:
      return "; the kernel does not take these nodes: they have no memory, or cpuset.mems excludes them";
    case ENOMEM:
      return "; no memory for the policy, or the mapping is not there";
    default:
      return "";
  }
}

std::string failed_call(int number, const std::string& what) {
  return fmt::format("{}: {}{}", what, std::strerror(number), remedy(number));
}

[[noreturn]] void fail_policy(int number, const std::string& what) {
  throw Error(Exit::failure, failed_call(number, what));
}

std::vector<int> ids_of(const Topology& topology) {
  std::vector<int> ids;
  for (const NumaNode& node : topology.nodes) ids.push_back(node.id);
  return ids;
}

std::string as_written(const plan::Policy& policy) {
  if (!policy.text.empty()) return policy.text;
  return policy.all_nodes ? "interleave:all" : text({policy.kind, policy.nodes});
}

// What the policy promises each of its nodes; empty where it promises nothing.
std::vector<double> shares_of_nodes(const EffectivePolicy& policy) {
  const std::size_t count = policy.nodes.size();
  if (policy.kind == PolicyKind::bind && count == 1) return {1.0};
  if (policy.kind == PolicyKind::interleave && count > 0) {
    return std::vector<double>(count, 1.0 / static_cast<double>(count));
  }
  if (policy.kind != PolicyKind::weighted) return {};
  double sum = 0;
  for (const int weight : policy.weights) sum += weight;
  std::vector<double> shares;
  for (const int weight : policy.weights) shares.push_back(weight / sum);
  return shares;
}

void check_node(const plan::Policy& policy, const Topology& topology, int id) {
  const NumaNode* node = topology.node(id);
  if (node == nullptr) {
    fail(Exit::skipped, "{}: this machine has NUMA nodes {}; choose one of them, or run on a machine with node {}",
         as_written(policy), node_list(ids_of(topology)), id);
  }
  if (node->bytes <= 0) {
    fail(Exit::skipped, "{}: NUMA node {} of this machine has no memory", as_written(policy), id);
  }
  if (!node->allowed) {
    std::vector<int> allowed;
    for (const NumaNode& other : topology.nodes) {
      if (other.allowed) allowed.push_back(other.id);
    }
    fail(Exit::failure,
         "{}: NUMA node {} is there, but this process may not use it (cpuset.mems allows {}); widen cpuset.mems of the "
         "container or slice",
         as_written(policy), id, node_list(allowed));
  }
}

// One mbind, read back at both ends. `policy` has no weights: the kernel keeps those elsewhere.
void bind_range(const EffectivePolicy& policy, std::byte* address, std::size_t bytes) {
  const int mode = mode_of(policy.kind);
  if (mode == MPOL_DEFAULT) return;
  NodeMask mask;
  for (const int node : policy.nodes) {
    if (node < 0 || node >= kMaxNodes) fail(Exit::usage, "{}: no such NUMA node", text(policy));
    mask.set(node);
  }
  if (::mbind(address, bytes, mode, mask.words.data(), NodeMask::max_node(), MPOL_MF_STRICT) != 0) {
    const int number = errno;
    const std::string what = fmt::format("{}: mbind of {} bytes", text(policy), bytes);
    if (number == EPERM || number == ENOSYS) throw PolicyRefused(Exit::failure, failed_call(number, what));
    fail_policy(number, what);
  }
  const std::byte* const ends[] = {address, address + (bytes - 1) / page_bytes() * page_bytes()};
  for (const std::byte* at : ends) {
    const EffectivePolicy found = read_back(at);
    if (found != policy) {
      fail(Exit::failure,
           "{}: mbind succeeded, but the kernel holds {} for page {} of the mapping; other code changed it",
           text(policy), text(found), static_cast<std::size_t>(at - address) / page_bytes());
    }
  }
}

}  // namespace

std::string node_list(std::span<const int> nodes) {
  std::string list;
  for (std::size_t i = 0; i < nodes.size();) {
    std::size_t last = i;
    while (last + 1 < nodes.size() && nodes[last + 1] == nodes[last] + 1) ++last;
    if (!list.empty()) list += ',';
    list += last == i ? fmt::format("{}", nodes[i]) : fmt::format("{}-{}", nodes[i], nodes[last]);
    i = last + 1;
  }
  return list.empty() ? "none" : list;
}

std::string text(const EffectivePolicy& policy) {
  if (policy.kind == PolicyKind::none || policy.kind == PolicyKind::stock) return word(policy.kind);
  if (policy.kind == PolicyKind::weighted && !policy.weights.empty()) {
    std::string list;
    for (std::size_t i = 0; i < policy.nodes.size(); ++i) {
      list += fmt::format("{}{}={}", i == 0 ? "" : ",", policy.nodes[i], policy.weights[i]);
    }
    return "weighted:" + list;
  }
  return fmt::format("{}:{}", word(policy.kind), node_list(policy.nodes));
}

EffectivePolicy resolve(const plan::Policy& policy, const Topology& topology) {
  switch (policy.kind) {
    case PolicyKind::none:
    case PolicyKind::stock:
      return {policy.kind, {}};
    case PolicyKind::consumer:
      fail(Exit::usage, "storage.policy consumer: the node of a table's readers is not known here");
    case PolicyKind::weighted:
    case PolicyKind::bind:
    case PolicyKind::preferred:
    case PolicyKind::interleave:
      break;
  }
  EffectivePolicy effective{policy.kind, policy.nodes};
  for (const auto& [node, weight] : policy.weights) {  // ascending, each once, from 1: as the plan read them
    if (weight < 1)
      fail(Exit::usage, "storage.policy {}: the weight of NUMA node {} is {}, must be 1 or more", as_written(policy),
           node, weight);
    effective.nodes.push_back(node);
    effective.weights.push_back(weight);
  }
  if (policy.all_nodes) {
    effective.nodes.clear();
    for (const NumaNode& node : topology.nodes) {
      if (node.allowed && node.bytes > 0) effective.nodes.push_back(node.id);
    }
  }
  std::sort(effective.nodes.begin(), effective.nodes.end());
  effective.nodes.erase(std::unique(effective.nodes.begin(), effective.nodes.end()), effective.nodes.end());
  if (effective.nodes.empty()) fail(Exit::usage, "storage.policy {}: names no NUMA node", as_written(policy));
  if (policy.kind == PolicyKind::preferred && effective.nodes.size() > 1) {
    fail(Exit::usage, "storage.policy {}: preferred takes one NUMA node; use bind or interleave for several",
         as_written(policy));
  }
  // Every missing node first: 77 goes before 1.
  for (const int id : effective.nodes) {
    const NumaNode* node = topology.node(id);
    if (node == nullptr || node->bytes <= 0) check_node(policy, topology, id);
  }
  for (const int id : effective.nodes) check_node(policy, topology, id);
  return effective;
}

void apply(const EffectivePolicy& policy, std::byte* address, std::size_t bytes, std::size_t unit) {
  if (bytes == 0) return;
  if (policy.kind != PolicyKind::weighted) return bind_range(policy, address, bytes);
  const std::vector<Segment> segments = bound_segments(policy, bytes, unit == 0 ? page_bytes() : unit);
  if (segments.empty()) return bind_range({policy.kind, policy.nodes}, address, bytes);
  for (const Segment& segment : segments) {
    bind_range({PolicyKind::bind, {segment.node}}, address + segment.offset, segment.bytes);
  }
}

EffectivePolicy read_back(const std::byte* address) {
  int mode = 0;
  NodeMask mask;
  if (::get_mempolicy(&mode, mask.words.data(), NodeMask::max_node(), const_cast<std::byte*>(address), MPOL_F_ADDR) !=
      0) {
    fail_policy(errno, "get_mempolicy of a mapping");
  }
  switch (mode & ~kModeFlags) {
    case MPOL_BIND:
      return {PolicyKind::bind, mask.list()};
    case MPOL_PREFERRED:
      return {PolicyKind::preferred, mask.list()};
    case MPOL_INTERLEAVE:
      return {PolicyKind::interleave, mask.list()};
    case kWeightedInterleave:
      return {PolicyKind::weighted, mask.list()};
    case MPOL_DEFAULT:
    case MPOL_LOCAL:
      return {PolicyKind::none, {}};
    default:
      fail(Exit::failure, "get_mempolicy of a mapping: unknown policy {}", mode_text(mode, mask.list()));
  }
}

std::string task_policy() {
  int mode = 0;
  NodeMask mask;
  if (::get_mempolicy(&mode, mask.words.data(), NodeMask::max_node(), nullptr, 0) != 0) {
    fail_policy(errno, "get_mempolicy of this task");
  }
  return mode_text(mode, mask.list());
}

std::vector<double> requested_shares(const EffectivePolicy& policy, int node_count) {
  std::vector<double> shares(static_cast<std::size_t>(node_count), 0.0);
  const std::vector<double> of_nodes = shares_of_nodes(policy);
  if (of_nodes.empty()) return {};
  for (std::size_t i = 0; i < policy.nodes.size(); ++i) {
    if (policy.nodes[i] < node_count) shares[static_cast<std::size_t>(policy.nodes[i])] = of_nodes[i];
  }
  return shares;
}

std::vector<std::string> broken_promises(const EffectivePolicy& policy, const std::map<int, std::int64_t>& node_pages,
                                         double tolerance, std::int64_t granule_pages) {
  std::vector<std::string> lines;
  const bool spread = policy.kind == PolicyKind::interleave || policy.kind == PolicyKind::weighted;
  if (policy.kind != PolicyKind::bind && !spread) return lines;
  std::int64_t total = 0;
  for (const auto& [node, pages] : node_pages) total += pages;
  if (total == 0) return lines;
  const auto asked = [&](int node) { return std::binary_search(policy.nodes.begin(), policy.nodes.end(), node); };
  for (const auto& [node, pages] : node_pages) {
    if (!asked(node) && pages > 0) {
      lines.push_back(fmt::format("{}: {} of {} pages lie on node {}", text(policy), pages, total, node));
    }
  }
  if (!spread) return lines;
  const std::vector<double> shares = shares_of_nodes(policy);
  for (std::size_t i = 0; i < policy.nodes.size(); ++i) {
    const auto at = node_pages.find(policy.nodes[i]);
    const std::int64_t pages = at == node_pages.end() ? 0 : at->second;
    const double found = static_cast<double>(pages) / static_cast<double>(total);
    // A remainder of one page a node is not a broken promise.
    const double slack = tolerance + static_cast<double>(granule_pages) / static_cast<double>(total);
    if (std::abs(found - shares[i]) > slack) {
      lines.push_back(fmt::format("{}: node {} holds {:.2f} % of {} pages, asked {:.2f} % +- {:.2f} %", text(policy),
                                  policy.nodes[i], 100 * found, total, 100 * shares[i], 100 * tolerance));
    }
  }
  return lines;
}

}  // namespace eb::placement
