#include "placement/machine.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/topology.h"
#include "tests/unit/temporary_folder.h"

namespace eb::placement {
namespace {

class Sysfs : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const { folder_.write(path, text + "\n"); }
  TemporaryFolder folder_;
  std::string root = folder_.path();
};

TEST_F(Sysfs, NodeNumbersMayHaveHoles) {
  for (const char* name : {"node10", "node2", "node0", "nodes", "node3x", "node-1", "has_cpu"}) {
    write(std::string("/sys/devices/system/node/") + name + "/meminfo", "");
  }
  EXPECT_EQ(read_node_numbers(root), (std::vector<int>{0, 2, 10}));
  EXPECT_TRUE(read_node_numbers(root + "/nowhere").empty());
}

TEST_F(Sysfs, HugePagePoolsBySize) {
  const std::string folder = "/sys/devices/system/node/node1/hugepages/";
  write(folder + "hugepages-1048576kB/nr_hugepages", "4");
  write(folder + "hugepages-1048576kB/free_hugepages", "3");
  write(folder + "hugepages-2048kB/nr_hugepages", "512");
  write(folder + "hugepages-2048kB/free_hugepages", "0");
  write(folder + "other/nr_hugepages", "9");
  const auto pools = read_huge_page_pools(1, root);
  ASSERT_EQ(pools.size(), 2U);
  EXPECT_EQ(pools[0].page_bytes, 2 << 20);
  EXPECT_EQ(pools[0].total, 512);
  EXPECT_EQ(pools[0].free, 0);
  EXPECT_EQ(pools[1].page_bytes, 1 << 30);
  EXPECT_EQ(pools[1].free, 3);
  EXPECT_TRUE(read_huge_page_pools(0, root).empty());
}

TEST(HwlocXml, HugePagePoolsByNodeWithoutTheBasePages) {
  const Topology topology = read_topology_xml(std::string(EB_TEST_DATA) + "/topology/two-socket-8gpu.xml");
  const auto pools = huge_page_pools_in(topology.hwloc_xml);
  ASSERT_EQ(pools.size(), 2U);
  ASSERT_EQ(pools.at(1).size(), 2U);
  EXPECT_EQ(pools.at(1)[0].page_bytes, 2 << 20);
  EXPECT_EQ(pools.at(1)[0].total, 1024);
  EXPECT_EQ(pools.at(1)[0].free, -1);
  EXPECT_EQ(pools.at(1)[1].total, 200);
  EXPECT_EQ(pools.at(0)[1].total, 0);
  EXPECT_THROW((void)huge_page_pools_in("no XML"), Error);
}

TEST_F(Sysfs, PciLinkNowAndAtMost) {
  const std::string folder = "/sys/bus/pci/devices/0000:18:00.0/";
  write(folder + "current_link_speed", "2.5 GT/s PCIe");
  write(folder + "current_link_width", "16");
  write(folder + "max_link_speed", "32.0 GT/s PCIe");
  EXPECT_FALSE(read_pci_link("0000:18:00.0", root));  // one figure is missing: no link, not a link of 0 lanes
  write(folder + "max_link_width", "16");
  write(folder + "numa_node", "1");
  const auto link = read_pci_link("0000:18:00.0", root);
  ASSERT_TRUE(link);
  EXPECT_EQ(link->now_gt_per_s, 2.5);
  EXPECT_EQ(link->max_gt_per_s, 32);
  EXPECT_EQ(link->max_width, 16);
  EXPECT_EQ(pci_numa_node("0000:18:00.0", root), 1);
}

TEST_F(Sysfs, DeviceWithoutALinkOrANode) {
  const std::string folder = "/sys/bus/pci/devices/0000:00:02.0/";
  write(folder + "current_link_speed", "Unknown");
  write(folder + "current_link_width", "0");
  write(folder + "max_link_speed", "Unknown");
  write(folder + "max_link_width", "255");
  write(folder + "numa_node", "-1");
  EXPECT_FALSE(read_pci_link("0000:00:02.0", root));
  EXPECT_EQ(pci_numa_node("0000:00:02.0", root), -1);
  EXPECT_EQ(pci_numa_node("0000:99:00.0", root), -1);
  write("/sys/devices/system/node/online", "0-1");
  EXPECT_EQ(pci_numa_node("0000:00:02.0", root), -1);
  write("/sys/devices/system/node/online", "0");  // where else could it hang
  EXPECT_EQ(pci_numa_node("0000:00:02.0", root), 0);
}

TEST(Memlock, IsTheLimitOfThisProcess) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit lower = before;
  lower.rlim_cur = 65536;
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &lower), 0);
  EXPECT_EQ(read_memlock_limit().soft_bytes, 65536);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

}  // namespace
}  // namespace eb::placement
