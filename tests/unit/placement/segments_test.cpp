// Weighted placement: exact shares by segments, and when the kernel's own policy is taken instead.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/backing.h"
#include "placement/policy.h"
#include "placement/pretouch.h"

namespace eb::placement {
namespace {

using plan::PolicyKind;

EffectivePolicy weighted(std::vector<int> nodes, std::vector<int> weights) {
  return {PolicyKind::weighted, std::move(nodes), std::move(weights)};
}

// Segments follow each other without holes, and each node's pages are within one of its exact share.
void expect_exact(const EffectivePolicy& policy, std::size_t bytes, std::size_t unit) {
  const std::vector<Segment> segments = weighted_segments(policy, bytes, unit);
  EXPECT_LE(segments.size(), kMaxSegments);
  std::map<int, std::size_t> pages;
  std::size_t end = 0;
  for (const Segment& segment : segments) {
    ASSERT_EQ(segment.offset, end);
    ASSERT_EQ(segment.offset % unit, 0U);
    ASSERT_GT(segment.bytes, 0U);
    end += segment.bytes;
    pages[segment.node] += (segment.bytes + unit - 1) / unit;
  }
  ASSERT_EQ(end, bytes);
  double sum = 0;
  for (const int weight : policy.weights) sum += weight;
  const auto total = static_cast<double>((bytes + unit - 1) / unit);
  for (std::size_t i = 0; i < policy.nodes.size(); ++i) {
    EXPECT_LT(std::abs(static_cast<double>(pages[policy.nodes[i]]) - total * policy.weights[i] / sum), 1.0)
        << text(policy) << ", " << bytes << " bytes, node " << policy.nodes[i];
  }
}

TEST(WeightedSegments, AreExactForEverySize) {
  for (const std::size_t pages : {1UL, 2UL, 3UL, 4UL, 5UL, 7UL, 1000UL, 1535UL, 4096UL, 12'345'678UL}) {
    expect_exact(weighted({0, 1}, {3, 1}), pages * 4096, 4096);
    expect_exact(weighted({0, 1}, {255, 254}), pages * 4096, 4096);
    expect_exact(weighted({0, 3, 5}, {1, 2, 4}), pages * 4096, 4096);
    expect_exact(weighted({2}, {7}), pages * 4096, 4096);
  }
  expect_exact(weighted({0, 1}, {3, 1}), 100UL << 21, 1UL << 21);  // huge pages
}

TEST(WeightedSegments, TakeTurnsAlongTheWholeMapping) {
  const std::vector<Segment> segments = weighted_segments(weighted({0, 1}, {3, 1}), 64UL << 30, 4096);
  EXPECT_GT(segments.size(), kMaxSegments / 2);
  for (std::size_t i = 1; i < segments.size(); ++i) EXPECT_NE(segments[i].node, segments[i - 1].node);
  EXPECT_EQ(weighted_segments(weighted({4}, {9}), 64UL << 30, 4096).size(), 1U);  // one node has no seams
}

TEST(WeightedSegments, AreLongWhereThereIsRoomAndManyWhereThereIsNot) {
  const auto stretches = [](std::size_t bytes) { return weighted_segments(weighted({0, 1}, {1, 1}), bytes, 4096); };
  EXPECT_EQ(stretches(1UL << 30).size(), 256U);   // of 4 MiB each
  EXPECT_EQ(stretches(64UL << 20).size(), 128U);  // 64 turns, shorter
  EXPECT_EQ(stretches(16UL << 12).size(), 16U);   // a page each
}

class KernelWeights : public testing::Test {
 protected:
  void SetUp() override {
    root = testing::TempDir() + "eb_weights_" + std::to_string(::getpid());
    folder = root + "/sys/kernel/mm/mempolicy/weighted_interleave";
    std::filesystem::create_directories(folder);
    write(0, "3");
    write(1, "1");
  }
  void TearDown() override { std::filesystem::remove_all(root); }
  void write(int node, const std::string& text) const {
    std::ofstream(folder + "/node" + std::to_string(node)) << text << "\n";
  }
  std::string root;
  std::string folder;
};

TEST_F(KernelWeights, AreTakenOnlyWhereTheyAreThere) {
  EXPECT_TRUE(kernel_holds_weights(weighted({0, 1}, {3, 1}), root));
  EXPECT_FALSE(kernel_holds_weights(weighted({0, 1}, {1, 3}), root));
  EXPECT_FALSE(kernel_holds_weights(weighted({0, 1}, {6, 2}), root));  // the same share, but not what was asked
  EXPECT_FALSE(kernel_holds_weights(weighted({0, 2}, {3, 1}), root));
  EXPECT_FALSE(kernel_holds_weights(weighted({}, {}), root));
  write(1, "x");
  EXPECT_FALSE(kernel_holds_weights(weighted({0, 1}, {3, 1}), root));
  EXPECT_FALSE(kernel_holds_weights(weighted({0, 1}, {3, 1}), root + "/nowhere"));  // a kernel before 6.9
}

TEST_F(KernelWeights, AreNeverWritten) {
  const auto before = std::filesystem::last_write_time(folder + "/node0");
  static_cast<void>(kernel_holds_weights(weighted({0, 1}, {5, 5}), root));
  EXPECT_EQ(read_file(folder + "/node0"), "3\n");
  EXPECT_EQ(std::filesystem::last_write_time(folder + "/node0"), before);
}

// On this machine: one weight on each node that can be used, by segments or by the kernel's policy, and the pages.
TEST(ApplyWeighted, PlacesThePagesAsAsked) {
  std::vector<int> nodes;
  for (const NumaNode& node : read_topology(Devices::skip).nodes) {
    if (node.allowed && node.bytes > 0 && nodes.size() < 2) nodes.push_back(node.id);
  }
  const std::vector<std::vector<int>> choices =
      nodes.size() == 2 ? std::vector<std::vector<int>>{{3, 1}, {1, 1}} : std::vector<std::vector<int>>{{1}, {7}};
  for (const std::vector<int>& weights : choices) {
    const EffectivePolicy policy = weighted(nodes, weights);
    for (const plan::Backing backing : {plan::Backing::shm, plan::Backing::memfd}) {
      const std::size_t bytes = 999 * page_bytes();
      const UniqueFd fd = create_backing(backing, bytes);
      const Mapping mapping = Mapping::shared(fd.get(), bytes, "test");
      apply(policy, mapping.data(), bytes, page_bytes());
      EXPECT_EQ(backing_state(fd.get()).allocated_bytes, 0) << "policies touch nothing";
      const bool by_kernel = kernel_holds_weights(policy);
      EXPECT_EQ(read_back(mapping.data()).kind, by_kernel ? PolicyKind::weighted : PolicyKind::bind);
      pretouch(plan::PretouchKind::leader, 0, true, mapping.data(), bytes);
      for (const Segment& segment : bound_segments(policy, bytes, page_bytes())) {
        EXPECT_NO_THROW(check_segment(segment, mapping.data(), page_bytes()));
        Segment wrong = segment;
        wrong.node = 63;
        EXPECT_THROW(check_segment(wrong, mapping.data(), page_bytes()), Error);
      }
    }
  }
}

}  // namespace
}  // namespace eb::placement
