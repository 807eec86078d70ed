// Lines recorded from real processes (Linux 6.18), and what must come out of them.
#include <gtest/gtest.h>

#include "collectors/process_maps.h"

namespace eb::collectors {
namespace {

NumaMapsEntry numa_line(const std::string& line) {
  std::int64_t skipped = -1;
  const auto entries = parse_numa_maps(line + "\n", &skipped);
  EXPECT_EQ(skipped, 0) << line;
  EXPECT_EQ(entries.size(), 1U) << line;
  return entries.empty() ? NumaMapsEntry{} : entries[0];
}

TEST(NumaMaps, DeletedShmFileUnderBind) {
  const auto entry =
      numa_line(R"(7ffb77ef0000 bind:0 file=/dev/shm/#20\040(deleted) dirty=256 active=0 N0=256 kernelpagesize_kB=4)");
  EXPECT_EQ(entry.address, 0x7ffb77ef0000U);
  EXPECT_EQ(entry.policy, "bind:0");
  EXPECT_EQ(entry.file, "/dev/shm/#20 (deleted)");
  EXPECT_EQ(entry.node_pages, (std::map<int, std::int64_t>{{0, 256}}));
  EXPECT_EQ(entry.kernel_page_bytes, 4096);
  EXPECT_FALSE(entry.huge);
}

TEST(NumaMaps, NameWithEveryEscape) {
  const auto entry = numa_line(
      "7ffb787f0000 default file=/dev/shm/a\\040b\\075c\\d\\011\xc3\xa9\\012 dirty=2 active=0 N0=2 "
      "kernelpagesize_kB=4");
  EXPECT_EQ(entry.file, "/dev/shm/a b=c\\d\t\xc3\xa9\n");
  // Only what the kernel escapes is undone.
  EXPECT_EQ(numa_line(R"(1000 default file=/x\101\777\04)").file, R"(/x\101\777\04)");
}

TEST(NumaMaps, HugePagesCountInTheirOwnUnit) {
  const auto entry =
      numa_line(R"(7f0e9ca00000 default file=/anon_hugepage\040(deleted) huge dirty=1 N0=1 kernelpagesize_kB=2048)");
  EXPECT_TRUE(entry.huge);
  EXPECT_EQ(entry.kernel_page_bytes, 2 << 20);
  EXPECT_EQ(entry.node_pages.at(0), 1);
}

TEST(NumaMaps, PoliciesInTheScenarioFilesWords) {
  const std::pair<const char*, const char*> cases[] = {
      {"prefer:0", "preferred:0"},
      {"prefer (many):0-1", "preferred-many:0-1"},
      {"weighted interleave:0,2", "weighted-interleave:0,2"},
      {"interleave=static:0-3", "interleave=static:0-3"},
      {"prefer=relative:1", "preferred=relative:1"},
      {"local", "local"},
  };
  for (const auto& [written, read] : cases) {
    const auto entry =
        numa_line(std::string("7ffb77800000 ") + written + " anon=256 dirty=256 N1=256 kernelpagesize_kB=4");
    EXPECT_EQ(entry.policy, read);
    EXPECT_EQ(entry.node_pages.at(1), 256);
  }
}

TEST(NumaMaps, MappingsWithoutPagesFlagsAndDevices) {
  EXPECT_TRUE(numa_line("7ffb77900000 weighted interleave:0").node_pages.empty());
  const auto stack = numa_line("7ffc1c75f000 default stack anon=15 dirty=15 active=1 N0=15 kernelpagesize_kB=4");
  EXPECT_EQ(stack.node_pages, (std::map<int, std::int64_t>{{0, 15}}));
  std::int64_t skipped = 0;
  EXPECT_TRUE(parse_numa_maps("7ffc1c75f000 default anon=x N0=15", &skipped).empty());  // not a number
  EXPECT_EQ(skipped, 1);
  EXPECT_EQ(numa_line("7f2a00000000 default file=/dev/nvidiactl").file, "/dev/nvidiactl");
  const auto many = numa_line("7f00 bind:0-7 file=/x mapped=9 mapmax=4 N0=1 N3=2 N12=6 kernelpagesize_kB=4");
  EXPECT_EQ(many.node_pages, (std::map<int, std::int64_t>{{0, 1}, {3, 2}, {12, 6}}));
}

TEST(NumaMaps, BadLinesAreCountedAndTheOthersKept) {
  std::int64_t skipped = 0;
  const auto entries = parse_numa_maps(
      "xyz default\n"
      "7f00\n"
      "\n"
      "7f10 default N0=1 kernelpagesize_kB=4\n"
      "7f20 default N0=-1\n"
      "7f30 default N0=\n"
      "7f40 default N0=99999999999999999999\n"
      "7f50 default kernelpagesize_kB=0\n"
      "7f60 default =3\n"
      "7f70 default N0=1",  // no line end: a file cut off
      &skipped);
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].address, 0x7f10U);
  EXPECT_EQ(entries[1].address, 0x7f70U);
  EXPECT_EQ(skipped, 7);
  EXPECT_TRUE(parse_numa_maps("", nullptr).empty());
}

constexpr const char* kSmaps =
    "7ffb77ef0000-7ffb780f0000 rw-s 00000000 00:1b 20                         /dev/shm/#20 (deleted)\n"
    "Size:               2048 kB\n"
    "KernelPageSize:        4 kB\n"
    "Rss:                1024 kB\n"
    "Pss:                 512 kB\n"
    "Shared_Dirty:       1024 kB\n"
    "THPeligible:           0\n"
    "VmFlags: rd wr sh mr mw me ms \n"
    "7f0e9c600000-7f0e9ca00000 rw-p 00000000 00:11 53475                      /anon_hugepage (deleted)\n"
    "KernelPageSize:     2048 kB\n"
    "Private_Hugetlb:    2048 kB\n"
    "VmFlags: rd wr mr mw me de ht \n"
    "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n"
    "Rss:                   0 kB\n"
    "5624b849c000-5624b8766000 rw-p 00000000 00:00 0 \n"
    "Rss:                   4 kB\n";

TEST(Smaps, FieldsOfEachMapping) {
  std::int64_t skipped = -1;
  const auto entries = parse_smaps(kSmaps, &skipped);
  EXPECT_EQ(skipped, 0);
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0].start, 0x7ffb77ef0000U);
  EXPECT_EQ(entries[0].end, 0x7ffb780f0000U);
  EXPECT_EQ(entries[0].device, "00:1b");
  EXPECT_EQ(entries[0].inode, 20U);
  EXPECT_EQ(entries[0].file, "/dev/shm/#20 (deleted)");
  EXPECT_EQ(entries[0].bytes.at("Pss"), 512 * 1024);
  EXPECT_FALSE(entries[0].bytes.contains("THPeligible"));  // not bytes
  EXPECT_EQ(entries[0].vm_flags, "rd wr sh mr mw me ms");
  EXPECT_EQ(entries[1].bytes.at("Private_Hugetlb"), 2 << 20);
  EXPECT_EQ(entries[1].vm_flags, "rd wr mr mw me de ht");
  EXPECT_EQ(entries[2].file, "[vsyscall]");
  EXPECT_EQ(entries[3].file, "");
  EXPECT_EQ(entries[0].raw + entries[1].raw + entries[2].raw + entries[3].raw, kSmaps);
}

TEST(Smaps, LineEndInANameIsTheOnlyEscape) {
  const auto entries = parse_smaps(
      "7ffb787f0000-7ffb788f0000 rw-s 00000000 00:1b 18    /dev/shm/a b=c\\d\t\\040\xc3\xa9\\012\nRss: 8 kB\n",
      nullptr);
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].file, "/dev/shm/a b=c\\d\t\\040\xc3\xa9\n");
}

TEST(Smaps, FieldsBehindABadHeadBelongToNobody) {
  std::int64_t skipped = 0;
  const auto entries = parse_smaps(
      "Rss: 1 kB\n"
      "1000-2000 rw-p 0 00:00 0\nRss: 4 kB\nnonsense\nPss: x kB\nSwap: 1 MB\nLocked: 9223372036854775807 kB\n"
      "3000-2000 rw-p 0 00:00 0\nRss: 8 kB\n"
      "4000-5000 rw-p 0 0000 0\nRss: 8 kB\n",
      &skipped);
  ASSERT_EQ(entries.size(), 1U);
  const std::vector<SmapsFields::Field> fields(entries[0].bytes.begin(), entries[0].bytes.end());
  EXPECT_EQ(fields, (std::vector<SmapsFields::Field>{{"Rss", 4096}}));
  EXPECT_EQ(skipped, 9);
}

TEST(Rollup, KeysInBytes) {
  const auto rollup = parse_rollup(
      "56248d671000-7ffc1c780000 ---p 00000000 00:00 0                          [rollup]\n"
      "Rss:               17176 kB\nPss:               12999 kB\nPss_Shmem:          1040 kB\n");
  EXPECT_EQ(rollup, (std::map<std::string, std::int64_t>{
                        {"Rss", 17176 * 1024}, {"Pss", 12999 * 1024}, {"Pss_Shmem", 1040 * 1024}}));
}

SmapsEntry vma(std::uint64_t start, std::uint64_t end) {
  SmapsEntry entry;
  entry.start = start;
  entry.end = end;
  return entry;
}

NumaMapsEntry at(std::uint64_t address) {
  NumaMapsEntry entry;
  entry.address = address;
  return entry;
}

TEST(SelectRange, SplitMergedAndHoles) {
  const std::vector<NumaMapsEntry> numa = {at(0x1000), at(0x3000), at(0x4000), at(0x9000)};
  const std::vector<SmapsEntry> smaps = {vma(0x1000, 0x2000), vma(0x3000, 0x4000), vma(0x4000, 0x6000),
                                         vma(0x9000, 0xa000)};
  const RangeMaps split = select_range(numa, smaps, 0x3000, 0x3000);  // two mappings, exactly
  EXPECT_EQ(split.numa.size(), 2U);
  EXPECT_EQ(split.smaps.size(), 2U);
  EXPECT_FALSE(split.covers_more);
  EXPECT_FALSE(split.has_holes);
  const RangeMaps inner = select_range(numa, smaps, 0x5000, 0x1000);  // the end of a larger mapping
  ASSERT_EQ(inner.numa.size(), 1U);
  EXPECT_EQ(inner.numa[0].address, 0x4000U);
  EXPECT_TRUE(inner.covers_more);
  const RangeMaps over = select_range(numa, smaps, 0x5000, 0x5000);
  EXPECT_TRUE(over.has_holes);
  EXPECT_EQ(over.smaps.size(), 2U);
  const RangeMaps none = select_range(numa, smaps, 0x7000, 0x1000);  // the last mapping before it does not reach it
  EXPECT_TRUE(none.numa.empty());
  EXPECT_TRUE(none.smaps.empty());
  EXPECT_TRUE(none.has_holes);
}

}  // namespace
}  // namespace eb::collectors
