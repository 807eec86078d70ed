#include "placement/topology.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "harness/base/error.h"

namespace eb::placement {
namespace {

std::string data_file(const char* name) { return std::string(EB_TEST_DATA) + "/topology/" + name; }

TEST(Topology, ReadsThisMachine) {
  const Topology topology = read_topology(Devices::skip);
  ASSERT_FALSE(topology.nodes.empty());
  std::int64_t bytes = 0;
  for (const NumaNode& node : topology.nodes) bytes += node.bytes;
  EXPECT_GT(bytes, 64LL << 20);
  EXPECT_EQ(topology.distances.size(), topology.nodes.size());
  EXPECT_EQ(topology.distances[0][0], 10);  // the SLIT's own unit: local is 10
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(topology.allowed_cpus.size(), static_cast<std::size_t>(CPU_COUNT(&set)));
  EXPECT_NE(topology.hwloc_xml.find("<topology"), std::string::npos);
}

TEST(Topology, AllowedCpusFollowTheAffinityOfTheProcess) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int first = own_cpus().front();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const std::vector<int> seen = read_topology(Devices::skip).allowed_cpus;
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(seen, std::vector<int>{first});
}

TEST(Topology, SyntheticMachineHasItsNodesAndCpus) {
  const Topology topology = synthetic_topology("pack:2 [numa(memory=1073741824)] core:4 pu:1");
  ASSERT_EQ(topology.nodes.size(), 2U);
  EXPECT_EQ(topology.nodes[1].id, 1);
  EXPECT_EQ(topology.nodes[0].bytes, 1LL << 30);
  EXPECT_EQ(topology.nodes[1].cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(topology.node(1), &topology.nodes[1]);
  EXPECT_EQ(topology.node(2), nullptr);
}

TEST(Topology, TwoSocketServerFromXml) {
  const Topology topology = read_topology_xml(data_file("two-socket-8gpu.xml"));
  ASSERT_EQ(topology.nodes.size(), 2U);
  ASSERT_EQ(topology.distances.size(), 2U);
  EXPECT_EQ(topology.distances[0][0], 10);
  EXPECT_EQ(topology.distances[0][1], 21);
  EXPECT_EQ(topology.distances[1][0], 21);
  std::vector<int> gpu_nodes;
  for (const PciDevice& device : topology.devices) {
    if (device.kind == "gpu") gpu_nodes.push_back(device.node);
  }
  EXPECT_EQ(gpu_nodes, (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(Topology, NodeOfMemoryAloneHasNoCpus) {
  const Topology cxl = read_topology_xml(data_file("two-socket-cxl.xml"));  // the cpuset of node 2 is node 0's
  ASSERT_EQ(cxl.nodes.size(), 3U);
  EXPECT_EQ(cxl.nodes[0].cpus, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(cxl.nodes[1].cpus, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_TRUE(cxl.nodes[2].cpus.empty());
  EXPECT_EQ(cxl.devices.at(0).node, 0);  // a network card of socket 0, behind which two nodes lie
  // Node 0 is one of the whole machine, beside one a socket: the smaller cpusets take the CPUs.
  const Topology wide = synthetic_topology("[numa(indexes=2,1,0)] pack:2 [numa] core:2 pu:1");
  ASSERT_EQ(wide.nodes.size(), 3U);
  EXPECT_TRUE(wide.nodes[0].cpus.empty());
  EXPECT_EQ(wide.nodes[1].cpus, (std::vector<int>{2, 3}));
  EXPECT_EQ(wide.nodes[2].cpus, (std::vector<int>{0, 1}));
}

TEST(Topology, XmlOfOneReadingIsReadBackTheSame) {
  const Topology first = read_topology_xml(data_file("two-socket-8gpu.xml"));
  char path[] = "/tmp/eb_topology_XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  close(fd);
  std::ofstream(path) << first.hwloc_xml;
  const Topology second = read_topology_xml(path);
  std::remove(path);
  EXPECT_EQ(second.devices.size(), first.devices.size());
  EXPECT_EQ(second.distances, first.distances);
  EXPECT_EQ(second.nodes.size(), first.nodes.size());
}

Exit exit_of(const std::string& path) {
  try {
    (void)read_topology_xml(path);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    return error.exit();
  }
  return Exit::ok;
}

TEST(Topology, BadInputIsUsage) {
  EXPECT_EQ(exit_of("/nonexistent.xml"), Exit::usage);
  EXPECT_EQ(exit_of(data_file("broken.xml")), Exit::usage);
  EXPECT_THROW((void)synthetic_topology("nonsense:zero"), Error);
}

}  // namespace
}  // namespace eb::placement
