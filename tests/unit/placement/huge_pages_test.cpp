// Pools and switches of huge pages, read from made-up machines; and mappings of huge pages on this one.
#include "placement/huge_pages.h"

#include <gtest/gtest.h>

#include "harness/base/os.h"
#include "harness/plan/layout.h"
#include "kernels/pretouch.h"
#include "placement/backing.h"
#include "tests/unit/temporary_folder.h"

namespace eb::placement {
namespace {

using plan::Backing;
using plan::PolicyKind;

constexpr std::int64_t k2M = std::int64_t{2} << 20;
constexpr std::int64_t k1G = std::int64_t{1} << 30;

// A made-up machine with pools and switches.
class Machine : public TemporaryFolder {
 public:
  void pool(int node, std::int64_t total, std::int64_t free, int kib = 2048) const {
    const std::string folder = fmt::format("/sys/devices/system/node/node{}/hugepages/hugepages-{}kB/", node, kib);
    write(folder + "nr_hugepages", fmt::format("{}", total));
    write(folder + "free_hugepages", fmt::format("{}", free));
  }
  void machine_pool(const char* file, std::int64_t value) const {
    write(fmt::format("/sys/kernel/mm/hugepages/hugepages-2048kB/{}", file), fmt::format("{}", value));
  }
  void thp(const std::string& file, const std::string& text) const {
    write("/sys/kernel/mm/transparent_hugepage/" + file, text);
  }
};

TEST(Units, AreThePageSizesOfTheBackings) {
  EXPECT_EQ(plan::unit_bytes(Backing::hugetlb_1g), k1G);
  for (const Backing backing : {Backing::hugetlb_2m, Backing::shm_thp, Backing::anon_thp}) {
    EXPECT_EQ(plan::unit_bytes(backing), k2M);
  }
  for (const Backing backing : {Backing::shm, Backing::memfd, Backing::anon}) {
    EXPECT_EQ(plan::unit_bytes(backing), static_cast<std::int64_t>(page_bytes()));
  }
}

// Two backings of 3 and 2 pages.
TEST(PoolDemands, FollowThePolicy) {
  const auto demands = [](PolicyKind kind, std::vector<int> nodes) {
    std::vector<std::pair<std::vector<int>, std::int64_t>> out;
    for (const PoolDemand& one : pool_demands({kind, std::move(nodes)}, {3, 2})) out.emplace_back(one.nodes, one.pages);
    return out;
  };
  using List = std::vector<std::pair<std::vector<int>, std::int64_t>>;
  EXPECT_EQ(demands(PolicyKind::none, {}), (List{{{}, 5}}));
  EXPECT_EQ(demands(PolicyKind::preferred, {1}), (List{{{}, 5}}));
  EXPECT_EQ(demands(PolicyKind::bind, {0, 1}), (List{{{0, 1}, 5}, {{}, 5}}));
  EXPECT_EQ(demands(PolicyKind::interleave, {0, 1}), (List{{{0}, 3}, {{1}, 3}, {{}, 5}}));
  const std::vector<PoolDemand> weighted = pool_demands({PolicyKind::weighted, {0, 1}, {3, 1}}, {8, 2});
  ASSERT_EQ(weighted.size(), 3U);
  EXPECT_EQ(weighted[0].pages, 6 + 2);
  EXPECT_EQ(weighted[1].pages, 2 + 1);
  EXPECT_EQ(weighted[2].pages, 10);
}

TEST(PoolShortage, NamesNodeNeedAndPool) {
  const Machine machine;
  machine.pool(0, 64, 60);
  machine.pool(1, 64, 10);
  machine.pool(1, 0, 0, 1048576);
  const HugePools pools = read_huge_pools(k2M, machine.path());
  EXPECT_EQ(pools.nodes.size(), 2U);
  EXPECT_TRUE(pool_shortage(Backing::hugetlb_2m, {{{0}, 60}, {{}, 70}}, pools).text.empty());
  const PoolShortage small = pool_shortage(Backing::hugetlb_2m, {{{1}, 11}, {{}, 11}}, pools);
  EXPECT_EQ(small.exit, Exit::failure);
  for (const char* part : {"hugetlb-2m", "NUMA node 1", "need 11 (22.0 MiB)", "10 can be had", "node 1: 10 of 64 free",
                           "nr_hugepages", "hugepages-2048kB"}) {
    EXPECT_NE(small.text.find(part), std::string::npos) << part << "\n" << small.text;
  }
  EXPECT_EQ(pool_shortage(Backing::hugetlb_2m, {{{}, 71}}, pools).exit, Exit::failure);
}

TEST(PoolShortage, NoPoolAtAllIsASkip) {
  const Machine machine;
  machine.pool(0, 64, 64);
  machine.pool(1, 0, 0);
  const HugePools pools = read_huge_pools(k2M, machine.path());
  EXPECT_EQ(pool_shortage(Backing::hugetlb_2m, {{{1}, 1}}, pools).exit, Exit::skipped);
  const PoolShortage none = pool_shortage(Backing::hugetlb_1g, {{{}, 1}}, read_huge_pools(k1G, machine.path()));
  EXPECT_EQ(none.exit, Exit::skipped);
  EXPECT_NE(none.text.find("this machine has no pool of 1.0 GiB huge pages"), std::string::npos) << none.text;
  // A node without a pool goes before one whose pool is too small: 77 before 1.
  EXPECT_EQ(pool_shortage(Backing::hugetlb_2m, {{{0}, 99}, {{1}, 1}}, pools).exit, Exit::skipped);
}

TEST(PoolShortage, ReservedPagesAreTakenAndOvercommitMayBeAdded) {
  const Machine machine;
  machine.pool(0, 10, 10);
  machine.machine_pool("resv_hugepages", 8);
  EXPECT_EQ(pool_shortage(Backing::hugetlb_2m, {{{}, 3}}, read_huge_pools(k2M, machine.path())).exit, Exit::failure);
  EXPECT_TRUE(pool_shortage(Backing::hugetlb_2m, {{{}, 2}}, read_huge_pools(k2M, machine.path())).text.empty());
  machine.machine_pool("nr_overcommit_hugepages", 4);
  machine.machine_pool("surplus_hugepages", 1);
  EXPECT_TRUE(pool_shortage(Backing::hugetlb_2m, {{{}, 5}}, read_huge_pools(k2M, machine.path())).text.empty());
  EXPECT_FALSE(pool_shortage(Backing::hugetlb_2m, {{{}, 6}}, read_huge_pools(k2M, machine.path())).text.empty());
}

TEST(ThpSwitches, OfPrivateMemory) {
  const Machine machine;
  EXPECT_NE(thp_obstacle(Backing::anon_thp, machine.path()), "");  // a kernel without
  machine.thp("enabled", "always [madvise] never");
  EXPECT_EQ(thp_obstacle(Backing::anon_thp, machine.path()), "");
  machine.thp("enabled", "always madvise [never]");
  EXPECT_NE(thp_obstacle(Backing::anon_thp, machine.path()).find("enabled is never"), std::string::npos);
  // The switch of the size goes before the general one.
  machine.thp("hugepages-2048kB/enabled", "always inherit [madvise] never");
  EXPECT_EQ(thp_obstacle(Backing::anon_thp, machine.path()), "");
  machine.thp("hugepages-2048kB/enabled", "always [inherit] madvise never");
  EXPECT_NE(thp_obstacle(Backing::anon_thp, machine.path()), "");
}

TEST(ThpSwitches, OfSharedMemoryAndOfTheMount) {
  const Machine machine;
  EXPECT_EQ(shm_thp_source(machine.path()), ThpSource::none);
  machine.thp("shmem_enabled", "always within_size advise [never] deny force");
  EXPECT_EQ(shm_thp_source(machine.path()), ThpSource::none);
  EXPECT_NE(thp_obstacle(Backing::shm_thp, machine.path()).find("shmem_enabled is never"), std::string::npos);
  machine.write("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,huge=advise,inode64 0 0");
  EXPECT_EQ(shm_thp_source(machine.path()), ThpSource::dev_shm);
  machine.write("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,huge=advise 0 0\ntmpfs /dev/shm tmpfs rw 0 0");
  EXPECT_EQ(shm_thp_source(machine.path()), ThpSource::none);  // covered by a later mount
  machine.thp("shmem_enabled", "always within_size [advise] never deny force");
  EXPECT_EQ(shm_thp_source(machine.path()), ThpSource::memfd);
  EXPECT_EQ(thp_obstacle(Backing::shm_thp, machine.path()), "");
  machine.thp("hugepages-2048kB/shmem_enabled", "always inherit within_size advise [never]");
  EXPECT_EQ(shm_thp_source(machine.path()), ThpSource::none);
  machine.thp("shmem_enabled", "always within_size advise never [deny] force");
  machine.write("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,huge=always 0 0");
  EXPECT_EQ(shm_thp_source(machine.path()), ThpSource::none);
}

TEST(HugetlbBacking, IsWholePagesAndRefusedWherePoolIsShort) {
  EXPECT_THROW((void)create_backing(Backing::hugetlb_2m, 4096), Error);
  const HugePools pools = read_huge_pools(k2M);
  if (pools.nodes.empty()) GTEST_SKIP() << "this kernel has no pools of huge pages";
  std::int64_t free = pools.overcommit;
  for (const auto& [node, pool] : pools.nodes) free += pool.free;
  const std::size_t bytes = static_cast<std::size_t>((free + 1) * k2M);
  const UniqueFd fd = create_backing(Backing::hugetlb_2m, bytes);
  try {
    (void)map_backing(Backing::hugetlb_2m, fd.get(), bytes);
    ADD_FAILURE() << "mapped " << free + 1 << " pages of " << free;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Cannot allocate memory"), std::string::npos) << error.what();
  }
}

TEST(HugetlbBacking, OfAPoolCountsWhatWasTouched) {
  if (read_huge_pools(k2M).nodes.empty()) GTEST_SKIP() << "this kernel has no pools of huge pages";
  std::int64_t free = 0;
  for (const auto& [node, pool] : read_huge_pools(k2M).nodes) free += pool.free;
  if (free < 4) GTEST_SKIP() << "the pools of 2 MiB pages have " << free << " free pages; this test takes 4";
  const UniqueFd fd = create_backing(Backing::hugetlb_2m, 4 * k2M);
  const Mapping mapping = map_backing(Backing::hugetlb_2m, fd.get(), 4 * k2M);
  EXPECT_EQ(backing_state(fd.get()).allocated_bytes, 0);
  for (const auto method : {kernels::TouchMethod::populate_write, kernels::TouchMethod::rewrite}) {
    kernels::pretouch(mapping.data(), 3 * k2M, 2, method, k2M);
    EXPECT_EQ(backing_state(fd.get()).allocated_bytes, 3 * k2M);
  }
  std::int64_t left = 0;
  for (const auto& [node, pool] : read_huge_pools(k2M).nodes) left += pool.free;
  EXPECT_EQ(free - left, 3);
}

TEST(ThpMapping, StartsAtAMultipleOf2MiBAndCanBeMadeHuge) {
  const Mapping anon = map_private(5 * k2M, Backing::anon_thp);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(anon.data()) % static_cast<std::uintptr_t>(k2M), 0U);
  const UniqueFd fd = create_backing(Backing::memfd, 5 * k2M);
  const Mapping shared = map_backing(Backing::shm_thp, fd.get(), 5 * k2M);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(shared.data()) % static_cast<std::uintptr_t>(k2M), 0U);
  const std::string maps = read_file("/proc/self/smaps");
  for (const Mapping* each : {&anon, &shared}) {
    const auto start = reinterpret_cast<std::uintptr_t>(each->data());
    const std::size_t at = maps.find(fmt::format("{:x}-{:x} rw-", start, start + each->size()));
    ASSERT_NE(at, std::string::npos);
    const std::size_t flags = maps.find("VmFlags:", at);
    EXPECT_NE(maps.substr(flags, maps.find('\n', flags) - flags).find(" hg"), std::string::npos);  // MADV_HUGEPAGE
  }
}

}  // namespace
}  // namespace eb::placement
