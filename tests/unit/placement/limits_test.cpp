#include <gtest/gtest.h>

#include "harness/base/os.h"
#include "placement/backing.h"
#include "placement/cgroup.h"
#include "placement/pretouch.h"
#include "tests/unit/temporary_folder.h"

namespace eb::placement {
namespace {

// A made-up machine with control groups.
class Machine : public TemporaryFolder {
 public:
  void v2(const std::string& group, const std::string& max, const std::string& current,
          const std::string& inactive = "0") const {
    const std::string folder = "/sys/fs/cgroup" + group;
    write(folder + "/memory.max", max + "\n");
    write(folder + "/memory.current", current + "\n");
    write(folder + "/memory.stat", "anon 5\nfile 7\ninactive_file " + inactive + "\nactive_file 3\n");
  }
  void mount_v2(const std::string& group, const std::string& mount_root = "/") const {
    write("/proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n31 23 0:28 " + mount_root +
                                      " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    write("/proc/self/cgroup", "0::" + group + "\n");
  }
  void write_node(int node, const std::string& meminfo) const {
    write("/sys/devices/system/node/node" + std::to_string(node) + "/meminfo", meminfo);
  }
};

TEST(Cgroup, TightestOfTheAncestorsCountsNotTheNearest) {
  const Machine machine;
  machine.mount_v2("/pods/pod1/box");
  machine.v2("/pods/pod1/box", "8000000", "1000000");
  machine.v2("/pods/pod1", "4000000", "3500000", "200000");
  machine.v2("/pods", "max", "9000000");
  const auto tightest = tightest_cgroup_memory(machine.path());
  ASSERT_TRUE(tightest);
  EXPECT_EQ(tightest->folder, "/sys/fs/cgroup/pods/pod1");
  // 4,000,000 - (3,500,000 - 200,000 that the kernel can drop)
  EXPECT_EQ(tightest->free_bytes(), 700000);
  EXPECT_EQ(cgroup_memory_limits(machine.path()).size(), 2U);
  EXPECT_EQ(read_memory_limits(machine.path()).cgroup_free_bytes, 700000);
}

TEST(Cgroup, NoLimitIsUnknownNotZero) {
  const Machine machine;
  machine.mount_v2("/a");
  machine.v2("/a", "max", "123");
  EXPECT_FALSE(tightest_cgroup_memory(machine.path()));
  EXPECT_EQ(read_memory_limits(machine.path()).cgroup_free_bytes, -1);
  const Machine empty;
  EXPECT_FALSE(tightest_cgroup_memory(empty.path()));
}

TEST(Cgroup, OverTheLimitIsZero) {
  const Machine machine;
  machine.mount_v2("/a");
  machine.v2("/a", "1000", "5000");
  EXPECT_EQ(tightest_cgroup_memory(machine.path())->free_bytes(), 0);
}

TEST(Cgroup, V1WithItsLargestNumberMeaningNoLimit) {
  const Machine machine;
  machine.write("/proc/self/mountinfo",
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  machine.write("/proc/self/cgroup", "4:memory:/docker/ab\n2:cpu,cpuacct:/\n0::/\n");
  const std::string box = "/sys/fs/cgroup/memory/docker/ab/";
  machine.write(box + "memory.limit_in_bytes", "1000000\n");
  machine.write(box + "memory.usage_in_bytes", "600000\n");
  machine.write(box + "memory.stat", "inactive_file 1\ntotal_inactive_file 100000\n");
  machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n");
  const auto limits = cgroup_memory_limits(machine.path());
  ASSERT_EQ(limits.size(), 1U);
  EXPECT_EQ(limits[0].free_bytes(), 500000);
}

// Docker on cgroup v1: /proc/self/cgroup names the host's path, the mount shows the container's group at its top.
TEST(Cgroup, ContainerWhoseMountShowsItsOwnGroupAtTheTop) {
  const Machine machine;
  machine.mount_v2("/docker/ab/inner", "/docker/ab");
  machine.v2("", "5000", "1000");
  machine.v2("/inner", "max", "1000");
  const auto tightest = tightest_cgroup_memory(machine.path());
  ASSERT_TRUE(tightest);
  EXPECT_EQ(tightest->folder, "/sys/fs/cgroup");
  EXPECT_EQ(tightest->free_bytes(), 4000);
}

TEST(Limits, NodesCountOnlyWhereTheyAddUpToTheMachine) {
  const Machine machine;
  machine.write("/proc/meminfo", "MemTotal: 2000 kB\nMemFree: 900 kB\nMemAvailable:  1500 kB\n");
  machine.write_node(0, "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 100 kB\nNode 0 Inactive(file): 50 kB\n");
  machine.write_node(2, "Node 2 MemTotal: 990 kB\nNode 2 MemFree: 300 kB\nNode 2 SReclaimable: 7 kB\n");
  const MemoryLimits limits = read_memory_limits(machine.path());
  EXPECT_EQ(limits.available_bytes, 1500 * 1024);
  EXPECT_EQ(limits.node_free_bytes, (std::map<int, std::int64_t>{{0, 150 * 1024}, {2, 307 * 1024}}));
  machine.write_node(2, "Node 2 MemTotal: 500 kB\nNode 2 MemFree: 300 kB\n");  // memory given as it goes
  EXPECT_TRUE(read_memory_limits(machine.path()).node_free_bytes.empty());
}

TEST(Limits, WhatTheKernelKeepsForItselfIsNoRoom) {
  const Machine machine;
  machine.write("/proc/meminfo", "MemTotal: 2000 kB\n");
  machine.write_node(0, "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 500 kB\n");
  machine.write_node(1, "Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 100 kB\n");
  machine.write(
      "/proc/zoneinfo",
      "Node 0, zone      DMA\n  pages free     100\n        boost    0\n        min      3\n        low      9\n"
      "Node 0, zone   Normal\n  pages free     25\n        min      7\n  pagesets\n    cpu: 0\n"
      "Node 1, zone   Normal\n  pages free     25\n        min      500\n");
  const std::int64_t page = static_cast<std::int64_t>(page_bytes());
  EXPECT_EQ(read_memory_limits(machine.path()).node_free_bytes,
            (std::map<int, std::int64_t>{{0, 500 * 1024 - 10 * page}, {1, 0}}));
}

TEST(Limits, OfThisMachineAreKnown) {
  const MemoryLimits limits = read_memory_limits();
  EXPECT_GT(limits.available_bytes, 0);
  EXPECT_GE(limits.shm_free_bytes, 0);
}

TEST(MissingMemory, NamesEachBrokenLimitWithItsFigures) {
  MemoryLimits limits;
  limits.shm_free_bytes = 1000;
  limits.cgroup_free_bytes = 2000;
  limits.available_bytes = 3000;
  EXPECT_TRUE(
      missing_memory({.shared_bytes = 1000, .shm_file_bytes = 1000, .private_bytes = 1000, .bind_nodes = {}}, limits)
          .empty());
  const auto shm =
      missing_memory({.shared_bytes = 1001, .shm_file_bytes = 1001, .private_bytes = 0, .bind_nodes = {}}, limits);
  ASSERT_EQ(shm.size(), 1U);
  EXPECT_NE(shm[0].find("/dev/shm: needs 1001 B (1001 bytes), 1000 B free (1000 bytes)"), std::string::npos) << shm[0];
  const auto memfd =
      missing_memory({.shared_bytes = 2001, .shm_file_bytes = 0, .private_bytes = 0, .bind_nodes = {}}, limits);
  ASSERT_EQ(memfd.size(), 1U);
  EXPECT_NE(memfd[0].find("cgroup"), std::string::npos);
  EXPECT_EQ(
      missing_memory({.shared_bytes = 2000, .shm_file_bytes = 2000, .private_bytes = 2000, .bind_nodes = {}}, limits)
          .size(),
      3U);
  EXPECT_TRUE(missing_memory({.shared_bytes = 1LL << 50, .shm_file_bytes = 0, .private_bytes = 0, .bind_nodes = {}}, {})
                  .empty());
  limits = {};
  limits.node_free_bytes = {{0, 100}, {1, 50}};
  // Private tables are held against their nodes as well.
  EXPECT_EQ(missing_memory({.private_bytes = 80, .bind_nodes = {1}, .bind_bytes = 80}, limits).size(), 1U);
  EXPECT_EQ(missing_memory({.shared_bytes = 80, .bind_nodes = {1}, .bind_bytes = 80}, limits).size(), 1U);
  EXPECT_TRUE(missing_memory({.shared_bytes = 80, .bind_nodes = {0, 1}, .bind_bytes = 80}, limits).empty());
  // A node that is not there is refused by the policy, not called full.
  EXPECT_TRUE(missing_memory({.shared_bytes = 80, .bind_nodes = {7}, .bind_bytes = 80}, limits).empty());
}

TEST(HumanBytes, Units) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(202758032400), "188.8 GiB");
}

TEST(PretouchThreads, FollowThePolicy) {
  using plan::PretouchKind;
  EXPECT_EQ(pretouch_threads(PretouchKind::none, 8, true), 0);
  EXPECT_EQ(pretouch_threads(PretouchKind::leader, 8, true), 1);
  EXPECT_EQ(pretouch_threads(PretouchKind::leader, 8, false), 0);
  EXPECT_EQ(pretouch_threads(PretouchKind::parallel, 3, true), 3);
  EXPECT_EQ(pretouch_threads(PretouchKind::parallel, 3, false), 0);
  EXPECT_GE(pretouch_threads(PretouchKind::parallel, 0, true), 1);
}

}  // namespace
}  // namespace eb::placement
