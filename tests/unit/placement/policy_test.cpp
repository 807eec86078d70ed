#include "placement/policy.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/backing.h"
#include "tests/unit/placement/refuse_syscall.h"

namespace eb::placement {
namespace {

using plan::PolicyKind;

plan::Policy policy_of(PolicyKind kind, std::vector<int> nodes, const std::string& text) {
  plan::Policy policy;
  policy.kind = kind;
  policy.nodes = std::move(nodes);
  policy.text = text;
  return policy;
}

std::pair<Exit, std::string> failure_of(const plan::Policy& policy, const Topology& topology) {
  try {
    (void)resolve(policy, topology);
  } catch (const Error& error) {
    return {error.exit(), error.what()};
  }
  return {Exit::ok, ""};
}

Topology two_nodes() { return synthetic_topology("pack:2 [numa(memory=1073741824)] core:2 pu:1"); }

TEST(Resolve, MissingNodeIsSkippedAndNamesTheNodesThereAre) {
  const Topology one = synthetic_topology("numa:1(memory=1073741824) core:2 pu:1");
  const auto [exit, text] = failure_of(policy_of(PolicyKind::bind, {7}, "bind:7"), one);
  EXPECT_EQ(exit, Exit::skipped);
  EXPECT_EQ(text.substr(0, 41), "bind:7: this machine has NUMA nodes 0; ch");
}

TEST(Resolve, MissingComesBeforeForbidden) {
  Topology topology = two_nodes();
  topology.nodes[0].allowed = false;
  EXPECT_EQ(failure_of(policy_of(PolicyKind::bind, {0, 7}, "bind:0,7"), topology).first, Exit::skipped);
  const auto [exit, text] = failure_of(policy_of(PolicyKind::bind, {0}, "bind:0"), topology);
  EXPECT_EQ(exit, Exit::failure);
  EXPECT_NE(text.find("cpuset.mems allows 1"), std::string::npos) << text;
}

TEST(Resolve, NodeWithoutMemoryIsSkipped) {
  Topology topology = two_nodes();
  topology.nodes[1].bytes = 0;
  EXPECT_EQ(failure_of(policy_of(PolicyKind::preferred, {1}, "preferred:1"), topology).first, Exit::skipped);
}

TEST(Resolve, InterleaveAllSpellsOutNodesThatCanBeUsed) {
  Topology topology = synthetic_topology("pack:4 [numa(memory=1073741824)] core:1 pu:1");
  topology.nodes[1].allowed = false;
  topology.nodes[2].bytes = 0;
  plan::Policy all = policy_of(PolicyKind::interleave, {}, "interleave:all");
  all.all_nodes = true;
  EXPECT_EQ(resolve(all, topology).nodes, (std::vector<int>{0, 3}));
}

TEST(Resolve, SortsAndDropsDoubles) {
  EXPECT_EQ(resolve(policy_of(PolicyKind::interleave, {1, 0, 1}, "interleave:1,0,1"), two_nodes()).nodes,
            (std::vector<int>{0, 1}));
}

TEST(Resolve, WeightedNamesNodesThatThereAre) {
  plan::Policy policy = policy_of(PolicyKind::weighted, {}, "weighted:0=3,1=1");
  policy.weights = {{0, 3}, {1, 1}};
  const EffectivePolicy found = resolve(policy, two_nodes());
  EXPECT_EQ(found.nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(found.weights, (std::vector<int>{3, 1}));
  EXPECT_EQ(text(found), "weighted:0=3,1=1");
  policy.weights = {{0, 3}, {4, 1}};
  EXPECT_EQ(failure_of(policy, two_nodes()).first, Exit::skipped);
  policy.weights = {{0, 3}, {1, 0}};
  EXPECT_EQ(failure_of(policy, two_nodes()).first, Exit::usage);
}

TEST(Resolve, RefusesWhatNoMachineGives) {
  EXPECT_EQ(failure_of(policy_of(PolicyKind::consumer, {}, "consumer"), two_nodes()).first, Exit::usage);
  EXPECT_EQ(failure_of(policy_of(PolicyKind::weighted, {}, "weighted:"), two_nodes()).first, Exit::usage);
  EXPECT_EQ(failure_of(policy_of(PolicyKind::preferred, {0, 1}, "preferred:0,1"), two_nodes()).first, Exit::usage);
  EXPECT_EQ(failure_of(policy_of(PolicyKind::bind, {}, "bind:"), two_nodes()).first, Exit::usage);
}

// What the kernel was told, seen from the mapping: for each backing and kind.
class Apply : public testing::TestWithParam<plan::Backing> {
 protected:
  void SetUp() override {
    if (GetParam() == plan::Backing::anon) {
      mapping = map_private(kBytes);
    } else {
      fd = create_backing(GetParam(), kBytes);
      mapping = Mapping::shared(fd.get(), kBytes, "test");
    }
  }
  static constexpr std::size_t kBytes = 4 << 20;
  UniqueFd fd;
  Mapping mapping;
};

TEST_P(Apply, IsReadBackFromTheMapping) {
  const int node = read_topology(Devices::skip).nodes.front().id;
  for (const PolicyKind kind : {PolicyKind::bind, PolicyKind::preferred, PolicyKind::interleave}) {
    const EffectivePolicy policy{kind, {node}};
    apply(policy, mapping.data(), kBytes);
    EXPECT_EQ(text(read_back(mapping.data() + kBytes / 2)), text(policy));
  }
}

TEST_P(Apply, TouchesNothing) {
  apply({PolicyKind::bind, {read_topology(Devices::skip).nodes.front().id}}, mapping.data(), kBytes);
  if (fd) {
    EXPECT_EQ(backing_state(fd.get()).allocated_bytes, 0);
  }
}

TEST_P(Apply, NoneAndStockSetNothing) {
  apply({PolicyKind::none, {}}, mapping.data(), kBytes);
  apply({PolicyKind::stock, {}}, mapping.data(), kBytes);
  EXPECT_EQ(read_back(mapping.data()).kind, PolicyKind::none);
}

INSTANTIATE_TEST_SUITE_P(Backings, Apply,
                         testing::Values(plan::Backing::shm, plan::Backing::memfd, plan::Backing::anon),
                         [](const auto& each) {
                           return each.param == plan::Backing::shm     ? "shm"
                                  : each.param == plan::Backing::memfd ? "memfd"
                                                                       : "anon";
                         });

// The object's policy is the peers' policy too: that is why one process may set it for all.
TEST(ApplyShared, AnotherProcessSeesTheObjectsPolicy) {
  const UniqueFd fd = create_backing(plan::Backing::shm, 1 << 20);
  const Mapping mine = Mapping::shared(fd.get(), 1 << 20, "test");
  const int node = read_topology(Devices::skip).nodes.front().id;
  const pid_t child = fork();
  if (child == 0) {
    const Mapping other = Mapping::shared(fd.get(), 1 << 20, "test");
    apply({PolicyKind::bind, {node}}, other.data(), other.size());
    _exit(0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(text(read_back(mine.data())), text(EffectivePolicy{PolicyKind::bind, {node}}));
}

TEST(ApplyErrors, NameThePolicyAndTheErrno) {
  const Mapping mapping = map_private(1 << 20);
  try {
    apply({PolicyKind::bind, {999}}, mapping.data(), mapping.size());
    FAIL() << "node 999 was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::failure);
    EXPECT_NE(std::string(error.what()).find("bind:999: mbind of 1048576 bytes: Invalid argument"), std::string::npos)
        << error.what();
  }
}

// A container whose seccomp profile refuses mbind, or the read-back.
TEST(ApplyErrors, SayThatTheContainerRefusesTheCall) {
  for (const long call : {SYS_mbind, SYS_get_mempolicy}) {
    const std::string text = test::text_without_syscall(call, []() -> std::string {
      const Mapping mapping = map_private(1 << 20);
      try {
        apply({PolicyKind::bind, {0}}, mapping.data(), mapping.size());
      } catch (const Error& error) {
        return error.what();
      }
      return "it was taken";
    });
    if (text == "no seccomp") GTEST_SKIP() << "this kernel takes no seccomp filter";
    EXPECT_NE(text.find("this container refuses the call (seccomp)"), std::string::npos) << text;
  }
}

// MPOL_MF_STRICT: pages that lie elsewhere already are found, not left behind. Needs two nodes.
TEST(ApplyErrors, PagesThatLieElsewhereAlready) {
  const Topology topology = read_topology(Devices::skip);
  if (topology.nodes.size() < 2 || topology.nodes[1].bytes == 0) GTEST_SKIP() << "one NUMA node";
  const Mapping mapping = map_private(1 << 20);
  apply({PolicyKind::bind, {topology.nodes[0].id}}, mapping.data(), mapping.size());
  mapping.data()[0] = std::byte{1};
  EXPECT_THROW(apply({PolicyKind::bind, {topology.nodes[1].id}}, mapping.data(), mapping.size()), Error);
}

TEST(TaskPolicy, IsDefaultInATestRun) { EXPECT_EQ(task_policy(), "default"); }

TEST(NodeList, WritesRanges) {
  EXPECT_EQ(node_list(std::vector<int>{0}), "0");
  EXPECT_EQ(node_list(std::vector<int>{0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(node_list({}), "none");
}

TEST(RequestedShares, PromisesOnly) {
  EXPECT_EQ(requested_shares({PolicyKind::bind, {1}}, 2), (std::vector<double>{0, 1}));
  EXPECT_EQ(requested_shares({PolicyKind::interleave, {0, 2}}, 3), (std::vector<double>{0.5, 0, 0.5}));
  EXPECT_TRUE(requested_shares({PolicyKind::bind, {0, 1}}, 2).empty());
  EXPECT_TRUE(requested_shares({PolicyKind::preferred, {0}}, 2).empty());
  EXPECT_TRUE(requested_shares({PolicyKind::none, {}}, 2).empty());
  EXPECT_TRUE(requested_shares({PolicyKind::stock, {}}, 2).empty());
}

TEST(RequestedShares, WeightedAreTheWeights) {
  EXPECT_EQ(requested_shares({PolicyKind::weighted, {0, 2}, {3, 1}}, 3), (std::vector<double>{0.75, 0, 0.25}));
}

TEST(BrokenPromises, Weighted) {
  const EffectivePolicy policy{PolicyKind::weighted, {0, 1}, {3, 1}};
  EXPECT_TRUE(broken_promises(policy, {{0, 750}, {1, 250}}, 0.0).empty());
  EXPECT_TRUE(broken_promises(policy, {{0, 758}, {1, 242}}, 0.01).empty());
  EXPECT_EQ(broken_promises(policy, {{0, 500}, {1, 500}}, 0.01).size(), 2U);
  EXPECT_EQ(broken_promises(policy, {{0, 750}, {1, 240}, {2, 10}}, 0.01).front(),
            "weighted:0=3,1=1: 10 of 1000 pages lie on node 2");
}

TEST(BrokenPromises, BindAndInterleave) {
  EXPECT_TRUE(broken_promises({PolicyKind::bind, {1}}, {{1, 100}}, 0.01).empty());
  EXPECT_EQ(broken_promises({PolicyKind::bind, {1}}, {{0, 1}, {1, 99}}, 0.01).size(), 1U);
  EXPECT_TRUE(broken_promises({PolicyKind::interleave, {0, 1}}, {{0, 505}, {1, 495}}, 0.01).empty());
  EXPECT_EQ(broken_promises({PolicyKind::interleave, {0, 1}}, {{0, 600}, {1, 400}}, 0.01).size(), 2U);
  EXPECT_EQ(broken_promises({PolicyKind::interleave, {0, 1}}, {{0, 1000}}, 0.01).size(), 2U);
  EXPECT_TRUE(broken_promises({PolicyKind::interleave, {0, 1}}, {{0, 2}, {1, 1}}, 0.01).empty());  // one page left over
  // Seven huge pages, counted in system pages: four and three.
  EXPECT_TRUE(broken_promises({PolicyKind::interleave, {0, 1}}, {{0, 2048}, {1, 1536}}, 0.01, 512).empty());
  EXPECT_EQ(broken_promises({PolicyKind::interleave, {0, 1}}, {{0, 2048}, {1, 1536}}, 0.01).size(), 2U);
  EXPECT_TRUE(broken_promises({PolicyKind::preferred, {1}}, {{0, 100}}, 0.01).empty());
}

}  // namespace
}  // namespace eb::placement
