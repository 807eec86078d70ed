// weighted: which stretch of a mapping lies on which node, and whether the kernel does that by itself.
#include <numaif.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <numeric>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/policy.h"

namespace eb::placement {

namespace {

// Node of the page at `address`, which must be present.
int node_of(const std::byte* address) {
  int node = -1;
  if (::get_mempolicy(&node, nullptr, 0, const_cast<std::byte*>(address), MPOL_F_NODE | MPOL_F_ADDR) != 0) {
    fail(Exit::failure, "get_mempolicy of a touched page: {}", std::strerror(errno));
  }
  return node;
}

}  // namespace

std::vector<Segment> weighted_segments(const EffectivePolicy& policy, std::size_t bytes, std::size_t unit) {
  const auto sum = static_cast<std::size_t>(std::accumulate(policy.weights.begin(), policy.weights.end(), 0));
  const std::size_t pages = (bytes + unit - 1) / unit;
  const std::size_t wanted = std::max(kMinRounds, bytes / (kStretchBytes * policy.nodes.size()));
  const std::size_t most_rounds =
      std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(1, kMaxSegments / policy.nodes.size() - 1));
  // A round is a whole number of the weights' sum, so that all whole rounds are exact; the last one is shorter.
  const std::size_t round = sum * std::max<std::size_t>(1, (pages + sum * most_rounds - 1) / (sum * most_rounds));
  std::vector<Segment> segments;
  for (std::size_t first = 0; first < pages; first += round) {
    const std::size_t length = std::min(round, pages - first);
    std::size_t before = 0;  // weights so far
    for (std::size_t i = 0; i < policy.nodes.size(); ++i) {
      const std::size_t begin = first + length * before / sum;
      before += static_cast<std::size_t>(policy.weights[i]);
      const std::size_t end = first + length * before / sum;
      if (begin == end) continue;
      const std::size_t last_byte = std::min(bytes, end * unit);
      if (!segments.empty() && segments.back().node == policy.nodes[i]) {  // one node alone: no seams
        segments.back().bytes = last_byte - segments.back().offset;
      } else {
        segments.push_back({policy.nodes[i], begin * unit, last_byte - begin * unit});
      }
    }
  }
  return segments;
}

bool kernel_holds_weights(const EffectivePolicy& policy, const std::string& root) {
  for (std::size_t i = 0; i < policy.nodes.size(); ++i) {
    const std::string path =
        fmt::format("{}/sys/kernel/mm/mempolicy/weighted_interleave/node{}", root, policy.nodes[i]);
    std::string text;
    try {
      text = read_file(path);
    } catch (const Error&) {
      return false;
    }
    int weight = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), weight).ec != std::errc()) return false;
    if (weight != policy.weights[i]) return false;
  }
  return !policy.nodes.empty();
}

std::vector<Segment> bound_segments(const EffectivePolicy& policy, std::size_t bytes, std::size_t unit) {
  if (policy.kind != plan::PolicyKind::weighted || kernel_holds_weights(policy)) return {};
  return weighted_segments(policy, bytes, unit);
}

void check_segment(const Segment& segment, const std::byte* mapping, std::size_t unit) {
  const std::size_t last = segment.offset + (segment.bytes - 1) / unit * unit;
  for (const std::size_t offset : {segment.offset, last}) {
    const int found = node_of(mapping + offset);
    if (found == segment.node) continue;
    fail(Exit::failure, "segment [{}, +{}) was bound to NUMA node {} and touched, but its page at {} lies on node {}",
         segment.offset, segment.bytes, segment.node, offset, found);
  }
}

}  // namespace eb::placement
