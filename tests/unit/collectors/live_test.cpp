// Processes on a made-up /proc: what is taken for a table, who shares it, what is found, what may not be read.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "collectors/observation.h"
#include "tests/unit/temporary_folder.h"

namespace eb::collectors {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTable = "/dev/shm/vllm_engram_0_a1 (deleted)";

struct Piece {
  std::uint64_t start = 0;
  std::int64_t kib = 0;
  std::string permissions = "rw-s";
  std::string device = "00:1a";
  std::uint64_t inode = 77;
  std::string file = kTable;
  std::string numa;        // of the line, without the address: "default file=... N0=4"
  std::string smaps = "";  // fields behind Rss and Pss
  std::int64_t rss_kib = 0;
  std::int64_t pss_kib = 0;
  std::uint64_t offset = 0;
};

class FakeProc : public testing::Test {
 protected:
  void SetUp() override { machine.node_cpus = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}}; }
  void write(const std::string& path, const std::string& text) const { folder_.write(path, text); }

  void process(int pid, const std::string& cpus, const std::vector<Piece>& pieces,
               const std::string& task_policy = "default") const {
    const std::string folder = fmt::format("/proc/{}/", pid);
    write(folder + "status", fmt::format("Name:\tworker\nUid:\t1000\t1000\t1000\t1000\nThreads:\t9\n"
                                         "Cpus_allowed_list:\t{}\nMems_allowed_list:\t0-1\n",
                                         cpus));
    write(folder + "mounts", "tmpfs /dev/shm tmpfs rw,size=1g 0 0\n");
    std::string maps = "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0          [stack]\n";
    std::string smaps = maps + "Rss:  12 kB\nPss:  12 kB\nVmFlags: rd wr\n";
    std::string numa = fmt::format("7ffd00000000 {} stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n", task_policy);
    for (const Piece& piece : pieces) {
      const std::string head = fmt::format("{:x}-{:x} {} {:08x} {} {}    {}\n", piece.start,
                                           piece.start + static_cast<std::uint64_t>(piece.kib) * 1024,
                                           piece.permissions, piece.offset, piece.device, piece.inode, piece.file);
      maps += head;
      smaps += head + fmt::format("Rss:  {} kB\nPss:  {} kB\n{}", piece.rss_kib, piece.pss_kib, piece.smaps);
      numa += fmt::format("{:x} {}\n", piece.start, piece.numa);
    }
    write(folder + "maps", maps);
    write(folder + "smaps", smaps);
    write(folder + "numa_maps", numa);
    fs::create_directories(root + folder + "fd");
  }

  // Process `pid` has /dev/nvidiaN open, and N hangs on a bus address with a NUMA node.
  void device(int pid, int minor, const std::string& bus, int node) const {
    fs::create_directories(root + fmt::format("/proc/{}/fd", pid));
    fs::create_symlink(fmt::format("/dev/nvidia{}", minor), root + fmt::format("/proc/{}/fd/{}", pid, 10 + minor));
    write("/proc/driver/nvidia/gpus/" + bus + "/information",
          fmt::format("Model: \t\t NVIDIA H200\nBus Location: \t {}\nDevice Minor: \t {}\n", bus, minor));
    write("/sys/bus/pci/devices/" + bus + "/numa_node", fmt::format("{}\n", node));
  }

  [[nodiscard]] Observation look(const std::vector<int>& pids, const TableFilter& filter = {},
                                 const DeviceUsers& users = {}) const {
    return observe(pids, filter, machine, users, root);
  }

  static std::vector<std::string> texts(const Observation& look, const std::string& code) {
    std::vector<std::string> found;
    for (const LiveFinding& finding : look.findings) {
      if (finding.code == code) found.push_back(finding.text);
    }
    return found;
  }

  TemporaryFolder folder_;
  std::string root = folder_.path();
  LiveMachine machine;
};

Piece table(std::uint64_t start, const std::string& pages, std::int64_t pss_kib) {
  Piece piece;
  piece.start = start;
  piece.kib = 4096;
  piece.numa = fmt::format("default file={} dirty=1024 {} kernelpagesize_kB=4",
                           R"(/dev/shm/vllm_engram_0_a1\040(deleted))", pages);
  piece.rss_kib = 4096;
  piece.pss_kib = pss_kib;
  return piece;
}

TEST_F(FakeProc, OneBackingOfTwoProcessesIsCountedOnceFromTheFullestPageTable) {
  process(10, "0-3", {table(0x7f0000000000, "N0=900", 1800)});
  process(11, "4-7", {table(0x7e0000000000, "N0=1024", 2296)});
  device(10, 0, "0000:18:00.0", 0);
  device(11, 1, "0000:98:00.0", 1);
  const Observation found = look({10, 11});
  ASSERT_EQ(found.tables.size(), 1U);
  const LiveTable& one = found.tables[0];
  EXPECT_EQ(one.readers.size(), 2U);
  EXPECT_EQ(one.inode, 77U);
  EXPECT_EQ(found.processes[one.fullest.process].pid, 11);
  EXPECT_EQ(mapping_of(found.processes, one.fullest).node_bytes, (std::map<int, std::int64_t>{{0, 4 << 20}}));
  EXPECT_EQ(texts(found, "pages_on_one_node"),
            std::vector<std::string>{"all pages of this table lie on node 0; readers' GPUs are on nodes 0-1"});
  ASSERT_EQ(texts(found, "partly_in_page_table").size(), 1U);
  EXPECT_NE(texts(found, "partly_in_page_table")[0].find("process 10 has pages for 87.9 %"), std::string::npos);
  EXPECT_TRUE(texts(found, "mapped_by_others").empty());
  EXPECT_TRUE(texts(found, "not_present").empty());
  EXPECT_TRUE(found.unobserved.empty());
}

TEST_F(FakeProc, PagesOfSeveralPageTablesAreAddedUpWhereTheyAreApart) {
  process(10, "0-3", {table(0x7f0000000000, "N0=512", 2048)});
  process(11, "4-7", {table(0x7e0000000000, "N1=512", 2048)});  // PSS: no page is in both
  const Observation found = look({10, 11});
  ASSERT_EQ(found.tables.size(), 1U);
  EXPECT_EQ(found.tables[0].pages.node_bytes, (std::map<int, std::int64_t>{{0, 2 << 20}, {1, 2 << 20}}));
  EXPECT_EQ(texts(found, "pages_spread").size(), 1U);
  EXPECT_TRUE(texts(found, "pages_on_one_node").empty());
  EXPECT_TRUE(texts(found, "not_present").empty());
  EXPECT_TRUE(texts(found, "mapped_by_others").empty());
  EXPECT_EQ(texts(found, "partly_in_page_table").size(), 2U);
  const auto json = nlohmann::json::parse(observation_json(found, -1));
  EXPECT_EQ(json["tables"][0]["counted_from_pids"], (std::vector<int>{10, 11}));
  EXPECT_EQ(json["tables"][0]["uncounted_bytes"], 0);
}

TEST_F(FakeProc, WhatSeveralPageTablesDoNotTellIsNotClaimed) {
  // 2.5 MiB each, of which 1 MiB in both: PSS 2 MiB each, 4 MiB together. Which half of 11's pages are 10's is not
  // known.
  process(10, "0-3", {table(0x7f0000000000, "N0=640", 2048)});
  process(11, "4-7", {table(0x7e0000000000, "N1=640", 2048)});
  const Observation found = look({10, 11});
  EXPECT_EQ(found.tables[0].pages.readers, (std::vector<std::size_t>{0}));
  EXPECT_EQ(found.tables[0].pages.uncounted_bytes, 384 * 4096);
  ASSERT_EQ(texts(found, "counted_in_part").size(), 1U);
  EXPECT_NE(texts(found, "counted_in_part")[0].find("37.5 %"), std::string::npos);
  ASSERT_EQ(texts(found, "pages_on_one_node").size(), 1U);
  EXPECT_EQ(texts(found, "pages_on_one_node")[0].find("all the pages counted (62.5 % of this table) lie on node 0"),
            0U);
  EXPECT_TRUE(texts(found, "not_present").empty());
  EXPECT_TRUE(texts(found, "mapped_by_others").empty());
}

TEST_F(FakeProc, ProcessesWithPartsOfTheirOwnOfOneFile) {
  Piece second = table(0x7e0000000000, "N1=1024", 4096);
  second.offset = 4 << 20;
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 4096)});
  process(11, "4-7", {second});
  const Observation found = look({10, 11});
  ASSERT_EQ(found.tables.size(), 1U);
  EXPECT_EQ(found.tables[0].pages.bytes, 8 << 20);
  EXPECT_EQ(found.tables[0].pages.node_bytes, (std::map<int, std::int64_t>{{0, 4 << 20}, {1, 4 << 20}}));
  EXPECT_TRUE(texts(found, "partly_in_page_table").empty());
}

TEST_F(FakeProc, PrivateMappingsOfOneFileAreATableEach) {
  Piece own = table(0x7f0000000000, "N0=1024", 4096);
  own.permissions = "rw-p";
  process(10, "0-3", {own});
  own.numa.replace(own.numa.find("N0"), 2, "N1");
  process(11, "4-7", {own});
  const Observation found = look({10, 11});
  ASSERT_EQ(found.tables.size(), 2U);
  EXPECT_EQ(found.tables[0].kind, MappingKind::file);
}

TEST_F(FakeProc, PoolFilesBelowDevAreSharedMemory) {
  Piece pool = table(0x7f0000000000, "N0=2", 0);
  pool.file = "/dev/hugepages/tables";
  pool.numa = "default file=/dev/hugepages/tables huge dirty=2 N0=2 kernelpagesize_kB=2048";
  pool.rss_kib = 0;
  pool.smaps = "Shared_Hugetlb:  4096 kB\n";
  process(10, "0-3", {pool});
  process(11, "0-3", {pool});
  TableFilter filter;
  filter.match = std::regex("tables");
  const Observation found = look({10, 11}, filter);
  ASSERT_EQ(found.tables.size(), 1U);
  EXPECT_EQ(found.tables[0].kind, MappingKind::shared);
  const auto json = nlohmann::json::parse(observation_json(found, -1));
  EXPECT_EQ(json["tables"][0]["readers"][0]["rss_bytes"], 4 << 20);
}

TEST_F(FakeProc, TheOtherThreadsSpeakForAMainThreadThatHasEnded) {
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 4096)});
  fs::create_directories(root + "/proc/10/task/12");
  for (const char* file : {"maps", "smaps", "numa_maps", "status", "mounts"}) {
    fs::rename(root + "/proc/10/" + file, root + "/proc/10/task/12/" + file);
  }
  write("/proc/10/status", "Name:\tworker\nState:\tZ (zombie)\n");
  for (const char* file : {"maps", "smaps", "numa_maps"}) write(std::string("/proc/10/") + file, "");
  const Observation found = look({10});
  ASSERT_EQ(found.tables.size(), 1U);
  EXPECT_EQ(found.tables[0].pages.present_bytes(), 4 << 20);
}

TEST_F(FakeProc, TheSameNameWithAnotherInodeIsAnotherTable) {
  Piece other = table(0x7e0000000000, "N1=1024", 4096);
  other.inode = 78;
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 4096)});
  process(11, "4-7", {other});
  EXPECT_EQ(look({10, 11}).tables.size(), 2U);
}

TEST_F(FakeProc, WithoutDevicesTheReadersCpusAreNamed) {
  process(10, "0-7", {table(0x7f0000000000, "N0=512 N1=512", 4096)});
  const Observation found = look({10});
  EXPECT_EQ(texts(found, "pages_spread"),
            std::vector<std::string>{
                "pages of this table lie on nodes 0 (50.0 %), 1 (50.0 %); readers' CPUs are on nodes 0-1"});
  EXPECT_FALSE(local_share(found.processes[0], found.tables[0].pages));
}

TEST_F(FakeProc, HugePagesThatWereAskedForAndNotGiven) {
  Piece piece = table(0x7f0000000000, "N0=1024", 4096);
  piece.smaps = "ShmemPmdMapped:  123 kB\nVmFlags: rd wr sh hg\n";
  process(10, "0-3", {piece});
  EXPECT_EQ(texts(look({10}), "thp_not_covered"), std::vector<std::string>{"THP asked for (madvise), 3.0 % covered"});
  piece.smaps = "ShmemPmdMapped:  4096 kB\nVmFlags: rd wr sh hg\n";
  process(10, "0-3", {piece});
  EXPECT_TRUE(texts(look({10}), "thp_not_covered").empty());
  piece.smaps = "ShmemPmdMapped:  0 kB\nVmFlags: rd wr sh\n";
  process(10, "0-3", {piece});
  EXPECT_TRUE(texts(look({10}), "thp_not_covered").empty());  // nobody asked
  write("/proc/10/mounts", "tmpfs / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw,huge=always,size=1g 0 0\n");
  EXPECT_EQ(texts(look({10}), "thp_not_covered"),
            std::vector<std::string>{"THP asked for (mount option huge=always), 0.0 % covered"});
}

TEST_F(FakeProc, HugePagesByTheSystemsSettings) {
  LiveMapping mapping;
  mapping.kind = MappingKind::anonymous;
  mapping.page_bytes = 4096;
  EXPECT_EQ(huge_pages_asked(mapping, {{}, "always", "never"}), "transparent_hugepage always");
  EXPECT_EQ(huge_pages_asked(mapping, {{}, "madvise", "always"}), "");
  mapping.huge_refused = true;
  EXPECT_EQ(huge_pages_asked(mapping, {{}, "always", "never"}), "");
  LiveMapping memfd;
  memfd.file = "/memfd:table (deleted)";
  EXPECT_EQ(huge_pages_asked(memfd, {{}, "never", "always"}), "shmem_enabled always");
  memfd.page_bytes = 2 << 20;  // a pool's pages
  EXPECT_EQ(huge_pages_asked(memfd, {{}, "never", "always"}), "");
}

TEST_F(FakeProc, PssTellsOfReadersThatWereNotGiven) {
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 1024)});
  const auto found = texts(look({10}), "mapped_by_others");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].find("25.0 %"), std::string::npos);
}

TEST_F(FakeProc, PagesThatAreNotThere) {
  process(10, "0-3", {table(0x7f0000000000, "N0=256", 1024)});
  const auto found = texts(look({10}), "not_present");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].find("75.0 % of 4.0 MiB"), std::string::npos) << found[0];
}

TEST_F(FakeProc, PoliciesThatDifferAndTheTasksOwn) {
  Piece bound = table(0x7e0000000000, "N0=1024", 2048);
  bound.numa.replace(0, 7, "bind:1");
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 2048)}, "prefer:1");
  process(11, "0-3", {bound});
  const Observation found = look({10, 11});
  ASSERT_EQ(texts(found, "policies_differ").size(), 1U);
  EXPECT_NE(texts(found, "policies_differ")[0].find("bind:1, default"), std::string::npos);
  EXPECT_EQ(found.processes[0].task_policy.value, "preferred:1");
}

TEST_F(FakeProc, CpusFarFromTheDevice) {
  process(10, "0-3", {table(0x7f0000000000, "N1=1024", 4096)});
  device(10, 1, "0000:98:00.0", 1);
  const Observation found = look({10});
  EXPECT_EQ(texts(found, "cpus_far_from_device"),
            std::vector<std::string>{"process 10 runs on CPUs of node 0, its GPU 0000:98:00.0 is on node 1"});
  EXPECT_EQ(local_share(found.processes[0], found.tables[0].pages), 1.0);
}

TEST_F(FakeProc, NvmlSaysOnWhichOfTheOpenDevicesAProcessComputes) {
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 4096)});
  device(10, 0, "0000:18:00.0", 0);
  device(10, 1, "0000:98:00.0", 1);
  const Observation open = look({10});
  EXPECT_EQ(open.processes[0].devices.size(), 2U);
  EXPECT_NE(texts(open, "pages_on_one_node")[0].find("readers have GPUs open on nodes 0-1"), std::string::npos);
  const DeviceUsers users = nvml_device_users(
      R"({"driver": "580", "devices": [{"bus_id": "0000:98:00.0", "processes": [{"pid": 10}]},
          {"bus_id": {"value": null, "reason": "x"}, "processes": []}, {"index": 2}]})");
  const Observation known = look({10}, {}, users);
  ASSERT_EQ(known.processes[0].devices.size(), 1U);
  EXPECT_EQ(known.processes[0].devices[0].minor, 1);
  EXPECT_EQ(known.processes[0].devices[0].node, 1);
  EXPECT_NE(texts(known, "pages_on_one_node")[0].find("readers' GPUs are on node 1"), std::string::npos);
  EXPECT_TRUE(nvml_device_users(R"({"value": null, "reason": "no NVML"})").empty());
}

TEST_F(FakeProc, ADeviceThatTheProcessDoesNotHaveOpenIsNotBelieved) {
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 4096)});
  device(10, 0, "0000:18:00.0", 0);
  device(11, 1, "0000:98:00.0", 1);  // of another process: NVML means the host's process 10
  const Observation found = look({10}, {}, {{10, {"0000:98:00.0"}}});
  ASSERT_EQ(found.processes[0].devices.size(), 1U);
  EXPECT_EQ(found.processes[0].devices[0].minor, 0);
  EXPECT_EQ(found.processes[0].devices[0].source, "fd");
}

TEST_F(FakeProc, DriverMappingsAreAProcessesOwnAndOnlyLargeOnes) {
  Piece driver;
  driver.start = 0x7d0000000000;
  driver.kib = 256 << 10;
  driver.device = "00:06";
  driver.inode = 321;
  driver.file = "/dev/nvidiactl";
  driver.numa = "default file=/dev/nvidiactl dirty=32768 N1=32768 kernelpagesize_kB=4";
  Piece registers = driver;
  registers.kib = 70 << 10;
  registers.numa = "default file=/dev/nvidiactl";
  process(10, "0-3", {driver});
  process(11, "0-3", {driver});
  process(12, "0-3", {registers});
  const Observation found = look({10, 11, 12});
  ASSERT_EQ(found.tables.size(), 2U);  // one inode, and still not known to be one memory
  EXPECT_EQ(found.tables[0].kind, MappingKind::driver);
  ASSERT_EQ(found.unobserved.size(), 1U);
  EXPECT_EQ(found.unobserved[0].code, LookCode::no_tables);
  const auto json = nlohmann::json::parse(observation_json(found, -1));
  EXPECT_TRUE(json["tables"][0]["inode"].is_null());
}

TEST_F(FakeProc, UnnamedSharedMemoryIsTheDriversInACudaProcessAlone) {
  Piece pinned;  // as cudaHostAlloc's
  pinned.start = 0x7fc500000000;
  pinned.kib = 512 << 10;
  pinned.device = "00:01";
  pinned.inode = 4411;
  pinned.file = "/dev/zero (deleted)";
  pinned.numa = R"(default file=/dev/zero\040(deleted) dirty=131072 N0=131072 kernelpagesize_kB=4)";
  Piece second = pinned;
  second.start += 0x40000000;
  second.inode = 4412;
  Piece small = pinned;
  small.start += 0x80000000;
  small.inode = 4413;
  small.kib = 2048;
  Piece registers;
  registers.start = 0x7d0000000000;
  registers.kib = 64;
  registers.device = "00:06";
  registers.inode = 321;
  registers.file = "/dev/nvidiactl";
  registers.numa = "default file=/dev/nvidiactl";
  process(10, "0-3", {pinned, second, small, registers});
  process(11, "0-3", {pinned});
  const Observation found = look({10, 11});
  ASSERT_EQ(found.tables.size(), 2U);  // an allocation each: the inode tells them apart
  EXPECT_EQ(found.tables[0].kind, MappingKind::shared);
  EXPECT_NE(found.tables[0].inode, found.tables[1].inode);
  ASSERT_EQ(found.unobserved.size(), 1U);
  EXPECT_EQ(found.unobserved[0].pid, 11);
  TableFilter smaller;
  smaller.driver_bytes = 1 << 20;
  EXPECT_EQ(look({10}, smaller).tables.size(), 3U);
}

TEST_F(FakeProc, OthersByNameAndBySize) {
  Piece heap;
  heap.start = 0x555500000000;
  heap.kib = 8192;
  heap.permissions = "rw-p";
  heap.device = "00:00";
  heap.inode = 0;
  heap.file = "";
  heap.numa = "default anon=2048 dirty=2048 N0=2048 kernelpagesize_kB=4";
  Piece own = heap;
  own.start = 0x7c0000000000;
  own.kib = 1024;
  own.permissions = "rw-s";
  own.inode = 5;
  own.file = "/dev/shm/mine";
  process(10, "0-3", {heap, own});
  const Observation none = look({10});
  ASSERT_EQ(none.unobserved.size(), 1U);
  EXPECT_NE(none.unobserved[0].text.find("anonymous memory (8.0 MiB), /dev/shm/mine (1.0 MiB)"), std::string::npos)
      << none.unobserved[0].text;
  TableFilter by_name;
  by_name.match = std::regex("shm/mi");
  ASSERT_EQ(look({10}, by_name).tables.size(), 1U);
  EXPECT_EQ(look({10}, by_name).tables[0].file, "/dev/shm/mine");
  TableFilter by_size;
  by_size.min_bytes = 4 << 20;
  ASSERT_EQ(look({10}, by_size).tables.size(), 1U);
  EXPECT_EQ(look({10}, by_size).tables[0].kind, MappingKind::anonymous);
  by_size.match = by_name.match;
  EXPECT_TRUE(look({10}, by_size).tables.empty());  // both must hold
}

TEST_F(FakeProc, PiecesOfOneBackingAreAddedUpAndAPartMappedTwiceIsNamed) {
  Piece second = table(0x7f0000400000, "N1=1024", 4096);
  second.offset = 4 << 20;
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 4096), second});
  const Observation apart = look({10});
  ASSERT_EQ(apart.tables.size(), 1U);
  EXPECT_EQ(apart.processes[0].mappings[0].bytes, 8 << 20);
  EXPECT_EQ(apart.processes[0].mappings[0].pieces, 2);
  EXPECT_TRUE(texts(apart, "mapped_twice").empty());
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 1366), table(0x7f0000400000, "N0=1024", 1365)});
  process(11, "0-3", {table(0x7f0000000000, "N0=1024", 1365)});
  const Observation twice = look({10, 11});
  EXPECT_EQ(texts(twice, "mapped_twice").size(), 1U);
  EXPECT_EQ(twice.tables[0].pages.bytes, 4 << 20);
  EXPECT_EQ(twice.tables[0].pages.present_bytes(), 4 << 20);
  EXPECT_TRUE(texts(twice, "mapped_by_others").empty());
  EXPECT_TRUE(texts(twice, "partly_in_page_table").empty());
}

TEST_F(FakeProc, WhatMayNotBeReadIsNamedAndNull) {
  process(10, "0-3", {table(0x7f0000000000, "N0=1024", 4096)});
  fs::remove(root + "/proc/10/numa_maps");
  const Observation found = look({10});
  ASSERT_EQ(found.tables.size(), 1U);
  ASSERT_EQ(found.processes[0].unread.size(), 1U);
  EXPECT_EQ(found.processes[0].unread[0].first, "numa_maps");
  EXPECT_TRUE(texts(found, "pages_on_one_node").empty());
  const auto json = nlohmann::json::parse(observation_json(found, 2));
  EXPECT_TRUE(json["tables"][0]["node_pages"]["value"].is_null());
  EXPECT_NE(json["tables"][0]["node_pages"]["reason"].get<std::string>().find("numa_maps"), std::string::npos);
  EXPECT_EQ(json["tables"][0]["readers"][0]["rss_bytes"], 4 << 20);
  EXPECT_TRUE(json["processes"][0]["task_policy"]["value"].is_null());
}

TEST_F(FakeProc, GoneAndWithoutMemory) {
  process(10, "0-3", {});
  write("/proc/10/maps", "");
  const Observation found = look({10, 4711});
  ASSERT_EQ(found.unobserved.size(), 2U);
  EXPECT_EQ(found.unobserved[0].code, LookCode::no_memory);
  EXPECT_EQ(found.unobserved[1].code, LookCode::gone);
  EXPECT_NE(found.unobserved[1].text.find("process 4711 is gone"), std::string::npos);
}

TEST_F(FakeProc, HugePagePoolsHaveNoPssAndTheirOwnUnit) {
  Piece piece = table(0x7f0000000000, "", 0);
  piece.file = "/memfd:table (deleted)";
  piece.numa = R"(bind:1 file=/memfd:table\040(deleted) huge dirty=2 N1=2 kernelpagesize_kB=2048)";
  piece.rss_kib = 0;
  piece.smaps = "Shared_Hugetlb:  4096 kB\nVmFlags: rd wr sh ht\n";
  process(10, "0-3", {piece});
  TableFilter filter;
  filter.match = std::regex("memfd");
  const Observation found = look({10}, filter);
  const LiveMapping& mapping = found.processes[0].mappings[0];
  EXPECT_EQ(mapping.page_bytes, 2 << 20);
  EXPECT_EQ(mapping.node_bytes, (std::map<int, std::int64_t>{{1, 4 << 20}}));
  EXPECT_EQ(mapping.pool_bytes, 4 << 20);
  EXPECT_FALSE(mapping.pss_bytes);
  EXPECT_EQ(nlohmann::json::parse(observation_json(found, -1))["tables"][0]["node_pages"]["1"], 2);
}

}  // namespace
}  // namespace eb::collectors
