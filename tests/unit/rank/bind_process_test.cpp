// What bind_ranks asks for is read back; a part that a container refuses is named, and the other part still holds.
#include "harness/rank/bind_process.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "collectors/system_state.h"
#include "harness/base/error.h"
#include "placement/topology.h"
#include "tests/unit/placement/refuse_syscall.h"

namespace eb::rank {
namespace {

std::vector<int> first_cpu() { return {collectors::read_rank_state().cpus.front()}; }

std::vector<int> first_node() {
  const placement::Topology topology = placement::read_topology(placement::Devices::skip);
  for (const placement::NumaNode& node : topology.nodes) {
    if (node.allowed && node.bytes > 0) return {node.id};
  }
  return {};
}

// Binding lasts as long as the process: each case in a child of its own. No call is refused with number -1.
std::string in_child(long refused, const std::vector<int>& cpus, const std::vector<int>& nodes) {
  return test::text_without_syscall(refused, [&] {
    std::vector<std::string> lost;
    for (const control::LostPart& one : bind_process(cpus, nodes)) lost.push_back(one.part + " | " + one.text);
    const collectors::RankState state = collectors::read_rank_state();
    return fmt::format("lost [{}] cpus {} policy {}", fmt::join(lost, "; "), state.cpus.size(), state.task_policy);
  });
}

TEST(BindProcess, WhatWasAskedIsObtained) {
  EXPECT_EQ(in_child(-1, first_cpu(), first_node()),
            fmt::format("lost [] cpus 1 policy bind:{}", first_node().front()));
}

TEST(BindProcess, NothingAskedChangesNothing) {
  const collectors::RankState state = collectors::read_rank_state();
  EXPECT_EQ(in_child(-1, {}, {}), fmt::format("lost [] cpus {} policy {}", state.cpus.size(), state.task_policy));
}

TEST(BindProcess, RefusedMemoryPolicyIsNamedAndTheCpusHold) {
  const std::string text = in_child(SYS_set_mempolicy, first_cpu(), first_node());
  EXPECT_NE(text.find("memory policy bind:"), std::string::npos) << text;
  EXPECT_NE(text.find("set_mempolicy: Operation not permitted"), std::string::npos) << text;
  EXPECT_NE(text.find("SYS_NICE"), std::string::npos) << text;
  EXPECT_NE(text.find("cpus 1 policy default"), std::string::npos) << text;
}

TEST(BindProcess, RefusedCpusAreNamedAndTheMemoryPolicyHolds) {
  const std::string text = in_child(SYS_sched_setaffinity, first_cpu(), first_node());
  EXPECT_NE(text.find("sched_setaffinity: Operation not permitted"), std::string::npos) << text;
  EXPECT_NE(text.find("policy bind:"), std::string::npos) << text;
}

TEST(BindProcess, PolicyThatCannotBeReadBackCountsAsLost) {
  const std::string text = in_child(SYS_get_mempolicy, {}, first_node());
  EXPECT_NE(text.find("cannot be read back"), std::string::npos) << text;
}

TEST(BindProcess, PartsThatAreFoundOtherwiseLaterAreLost) {
  const auto text_of = [](const FoundBinding& found) {
    std::string text;
    for (const control::LostPart& one : lost_parts({1, 0}, {1}, found)) text += one.part + " | " + one.text + "\n";
    return text;
  };
  EXPECT_EQ(text_of({{0, 1}, "bind:1", ""}), "");
  EXPECT_EQ(text_of({{0}, "bind:1", ""}), "CPUs | CPUs 0-1: asked, found 0\n");
  EXPECT_EQ(text_of({{0, 1}, "bind:0", ""}), "memory policy | memory policy bind:1: asked, found bind:0\n");
  EXPECT_EQ(text_of({{0, 1}, "", "EPERM"}),
            "memory policy | memory policy bind:1: asked, but it cannot be read back: EPERM\n");
  EXPECT_TRUE(lost_parts({}, {}, {{7}, "default", ""}).empty());  // nothing was asked
}

TEST(BindProcess, CpuThatIsNotThereIsLost) {
  EXPECT_NE(in_child(-1, {1023}, {}).find("CPUs 1023: sched_setaffinity: Invalid argument"), std::string::npos);
}

}  // namespace
}  // namespace eb::rank
