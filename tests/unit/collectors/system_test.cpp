#include <gtest/gtest.h>

#include <filesystem>

#include "collectors/system_state.h"
#include "tests/unit/temporary_folder.h"

namespace eb::collectors {
namespace {

namespace fs = std::filesystem;

TEST(NodeMemoryFiles, UnitsAndNodeNumbersWithHoles) {
  const TemporaryFolder folder;
  for (const auto* node : {"node2", "node0", "node10", "nodeless"}) fs::create_directories(folder / node);
  folder.write("/node0/meminfo",
               "Node 0 MemTotal:        4679452 kB\nNode 0 HugePages_Total:     3\n"
               "Node 0 Active(anon):    8 kB\ngarbage\n");
  folder.write("/node10/meminfo", "Node 10 MemFree:  1 kB\n");
  folder.write("/nodeless/meminfo", "Node 5 MemFree:  1 kB\n");
  const auto nodes = read_node_memory(folder.path());
  ASSERT_EQ(nodes.size(), 2U);  // node2 has no meminfo
  EXPECT_EQ(nodes[0].node, 0);
  EXPECT_EQ(nodes[0].bytes, (std::map<std::string, std::int64_t>{
                                {"MemTotal", 4679452LL * 1024}, {"HugePages_Total", 3}, {"Active(anon)", 8192}}));
  EXPECT_EQ(nodes[1].node, 10);
}

TEST(NodeMemoryFiles, NoneWithoutSysfs) { EXPECT_TRUE(read_node_memory("/nonexistent").empty()); }

TEST(OsState, EveryKeyHasAValueOrAReason) {
  const auto state = read_os_state();
  for (const char* key : {"numa_balancing", "thp_anon", "thp_shmem", "zone_reclaim_mode", "ksm_run", "cpu_governor",
                          "cpuset_mems", "cgroup_memory_limit_bytes", "dev_shm_mount", "dev_shm_bytes", "memlock_bytes",
                          "kernel", "iommu", "ipc_namespace", "mount_namespace", "cgroup_namespace"}) {
    ASSERT_TRUE(state.contains(key)) << key;
    const Reading& reading = state.at(key);
    EXPECT_NE(reading.value.has_value(), !reading.reason.empty()) << key;
  }
  EXPECT_TRUE(state.at("kernel").value);
  EXPECT_TRUE(state.at("memlock_bytes").value);
}

}  // namespace
}  // namespace eb::collectors
