// The collectors against real mappings of this process and a forked peer.
#include <gtest/gtest.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "collectors/page_map.h"
#include "collectors/process_maps.h"
#include "collectors/snapshot.h"
#include "collectors/system_state.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/backing.h"
#include "placement/policy.h"
#include "tests/unit/placement/refuse_syscall.h"

namespace eb::collectors {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kPage = 4096;

void touch(const Mapping& mapping, std::size_t from, std::size_t bytes) {
  for (std::size_t at = from; at < from + bytes; at += kPage) mapping.data()[at] = std::byte{1};
}

std::uint64_t number(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

std::int64_t sum(const std::map<int, std::int64_t>& pages) {
  std::int64_t total = 0;
  for (const auto& [node, count] : pages) total += count;
  return total;
}

std::map<int, std::int64_t> numa_pages(const RangeMaps& range) {
  std::map<int, std::int64_t> pages;
  for (const NumaMapsEntry& entry : range.numa) {
    for (const auto& [node, count] : entry.node_pages) pages[node] += count * (entry.kernel_page_bytes / 4096);
  }
  return pages;
}

TEST(PageNodes, AgreesWithNumaMaps) {
  const UniqueFd fd = placement::create_backing(plan::Backing::shm, 16 << 20);
  const Mapping mapping = Mapping::shared(fd.get(), 16 << 20, "test");
  touch(mapping, 0, 5 << 20);
  const PageNodes pages = page_nodes(mapping.data(), mapping.size(), 0);
  EXPECT_EQ(pages.total, 4096);
  EXPECT_EQ(pages.queried, 4096);
  EXPECT_FALSE(pages.sampled);
  EXPECT_EQ(sum(pages.node_pages), 1280);
  EXPECT_EQ(pages.not_mapped, 4096 - 1280);
  EXPECT_TRUE(pages.unqueryable.empty());
  EXPECT_EQ(pages.node_pages, numa_pages(read_range(number(mapping.data()), mapping.size())));
  EXPECT_EQ(sum(pages.node_pages) * 4096, placement::backing_state(fd.get()).allocated_bytes);
}

// Asking must not fault what is not there.
TEST(PageNodes, TouchesNothing) {
  const UniqueFd fd = placement::create_backing(plan::Backing::memfd, 1 << 20);
  const Mapping mapping = Mapping::shared(fd.get(), 1 << 20, "test");
  const PageNodes pages = page_nodes(mapping.data(), mapping.size(), 0);
  EXPECT_EQ(pages.not_mapped, 256);
  EXPECT_TRUE(pages.node_pages.empty());
  EXPECT_EQ(placement::backing_state(fd.get()).allocated_bytes, 0);
}

// A page that a peer has touched is in the backing, yet not in this process's page table: a class of its own.
TEST(PageNodes, PagesOfAPeerAreNotMappedHere) {
  const UniqueFd fd = placement::create_backing(plan::Backing::shm, 1 << 20);
  const Mapping mapping = Mapping::shared(fd.get(), 1 << 20, "test");
  const pid_t child = fork();
  if (child == 0) {
    touch(mapping, 0, 1 << 20);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(placement::backing_state(fd.get()).allocated_bytes, 1 << 20);
  EXPECT_EQ(page_nodes(mapping.data(), mapping.size(), 0).not_mapped, 256);
}

// Linux 6.1 says EFAULT, not ENOENT, of private memory that was never touched; later kernels ENOENT. Asked of the
// kernel itself, apart from page_nodes().
bool kernel_names_untouched_private() {
  const Mapping mapping = placement::map_private(kPage);
  void* page = mapping.data();
  int status = 0;
  EXPECT_EQ(move_pages(0, 1, &page, nullptr, &status, 0), 0);
  return status == -ENOENT;
}

TEST(PageNodes, HolesAndZeroPagesAreUnqueryableNeverNodeZero) {
  const Mapping mapping = placement::map_private(64 * kPage);
  touch(mapping, 0, 8 * kPage);
  // Without huge pages, so that reading gives the zero page of 4 KiB.
  ASSERT_EQ(madvise(mapping.data(), mapping.size(), MADV_NOHUGEPAGE), 0);
  volatile std::byte read = mapping.data()[32 * kPage];  // the kernel's shared page of zeros
  (void)read;
  ASSERT_EQ(munmap(mapping.data() + 48 * kPage, 4 * kPage), 0);
  const PageNodes pages = page_nodes(mapping.data(), mapping.size(), 0);
  EXPECT_EQ(sum(pages.node_pages), 8);
  const std::int64_t untouched = kernel_names_untouched_private() ? 64 - 8 - 5 : 0;
  EXPECT_EQ(pages.not_mapped, untouched);
  // 4 of the hole, 1 zero page.
  EXPECT_EQ(pages.unqueryable, (std::map<int, std::int64_t>{{EFAULT, 64 - 8 - untouched}}));
  EXPECT_EQ(errno_name(EFAULT), "EFAULT");
  EXPECT_EQ(errno_name(99999), "99999");
}

// Shown on base pages: of each 2 MiB its first page in the range speaks for all.
TEST(PageNodes, HugePagesAreAskedOnceEach) {
  constexpr std::size_t kUnit = std::size_t{2} << 20;
  const UniqueFd fd = placement::create_backing(plan::Backing::memfd, 4 * kUnit);
  const Mapping mapping = Mapping::shared(fd.get(), 4 * kUnit, "test");
  std::byte* unit = mapping.data() + (kUnit - number(mapping.data()) % kUnit) % kUnit;
  ASSERT_EQ(madvise(mapping.data(), mapping.size(), MADV_NOHUGEPAGE), 0);
  unit[0] = unit[2 * kUnit] = std::byte{1};  // the first page of two huge pages
  // 3 pages of the one before, the one that was touched, one that was not, and 5 pages and a byte of the next.
  std::byte* start = unit == mapping.data() ? unit : unit - 3 * kPage;
  const auto before = static_cast<std::int64_t>((unit - start) / static_cast<std::ptrdiff_t>(kPage));
  const auto bytes = static_cast<std::size_t>(unit - start) + 2 * kUnit + 5 * kPage + 1;
  const PageNodes pages = huge_page_nodes(start, bytes, kUnit);
  EXPECT_EQ(sum(pages.node_pages), 512 + 6);
  EXPECT_EQ(pages.not_mapped, before + 512);
  EXPECT_EQ(pages.total, before + 2 * 512 + 6);
  EXPECT_EQ(pages.queried, pages.total);
  EXPECT_FALSE(pages.sampled);
}

TEST(CountStatus, ClassesByErrno) {
  PageNodes pages;
  const int status[] = {0, 0, 1, -ENOENT, -EFAULT, -EACCES, -EACCES, 3, -EBUSY};
  count_status(status, pages);
  EXPECT_EQ(pages.node_pages, (std::map<int, std::int64_t>{{0, 2}, {1, 1}, {3, 1}}));
  EXPECT_EQ(pages.not_mapped, 1);
  EXPECT_EQ(pages.unqueryable, (std::map<int, std::int64_t>{{EFAULT, 1}, {EACCES, 2}, {EBUSY, 1}}));
}

TEST(ShareError, IsThatOfAProportion) {
  EXPECT_DOUBLE_EQ(largest_share_error({{0, 50}, {1, 50}}), 0.05);
  EXPECT_DOUBLE_EQ(largest_share_error({{0, 90}, {1, 10}}), 0.03);
  EXPECT_EQ(largest_share_error({{1, 100}}), 0);
  EXPECT_EQ(largest_share_error({}), 0);
}

TEST(PageNodes, SampleIsSpreadAndSaysHowSureItIs) {
  const UniqueFd fd = placement::create_backing(plan::Backing::shm, 32 << 20);
  const Mapping mapping = Mapping::shared(fd.get(), 32 << 20, "test");
  touch(mapping, 0, 8 << 20);  // the first quarter
  const PageNodes pages = page_nodes(mapping.data(), mapping.size(), 1000);
  EXPECT_TRUE(pages.sampled);
  EXPECT_EQ(pages.total, 8192);
  EXPECT_EQ(pages.queried, 1000);
  EXPECT_NEAR(static_cast<double>(sum(pages.node_pages)), 250, 1);  // one page out of each stretch: no luck in it
  EXPECT_EQ(page_nodes(mapping.data(), mapping.size(), 8192).sampled, false);
}

// Interleaved pages alternate: a sample at a fixed even step would see one node only.
TEST(PageNodes, SampleDoesNotFollowAnAlternatingPattern) {
  const UniqueFd fd = placement::create_backing(plan::Backing::shm, 32 << 20);
  const Mapping mapping = Mapping::shared(fd.get(), 32 << 20, "test");
  for (std::size_t at = 0; at < mapping.size(); at += 2 * kPage) mapping.data()[at] = std::byte{1};
  const PageNodes pages = page_nodes(mapping.data(), mapping.size(), 1024);
  EXPECT_NEAR(static_cast<double>(sum(pages.node_pages)), 512, 64);
  EXPECT_NEAR(static_cast<double>(pages.not_mapped), 512, 64);
}

// A policy on a part makes the kernel hold the mapping in pieces; all of them are found.
TEST(ReadRange, FindsAllPiecesOfASplitMapping) {
  const UniqueFd fd = placement::create_backing(plan::Backing::shm, 8 << 20);
  const Mapping mapping = Mapping::shared(fd.get(), 8 << 20, "test");
  placement::apply({plan::PolicyKind::bind, {0}}, mapping.data(), 2 << 20);
  placement::apply({plan::PolicyKind::interleave, {0}}, mapping.data() + (2 << 20), 2 << 20);
  touch(mapping, 0, 8 << 20);
  const RangeMaps range = read_range(number(mapping.data()), mapping.size());
  ASSERT_EQ(range.numa.size(), 3U);
  EXPECT_EQ(range.numa[0].policy, "bind:0");
  EXPECT_EQ(range.numa[1].policy, "interleave:0");
  EXPECT_EQ(range.numa[2].policy, "default");
  EXPECT_EQ(sum(numa_pages(range)), 2048);
  EXPECT_FALSE(range.covers_more);
  EXPECT_FALSE(range.has_holes);
}

TEST(ReadRange, PrivateMappingIsAloneInItsFigures) {
  const Mapping a = placement::map_private(1 << 20);
  const Mapping b = placement::map_private(1 << 20);
  touch(a, 0, 1 << 20);
  touch(b, 0, 1 << 19);
  const RangeMaps range = read_range(number(b.data()), b.size());
  EXPECT_FALSE(range.covers_more);
  EXPECT_EQ(sum(numa_pages(range)), 128);
}

TEST(ReadRange, FileThatCannotBeReadIsAReason) {
  const RangeMaps range = read_range(0x1000, 0x1000, "/nonexistent");
  EXPECT_NE(range.numa_reason.find("/nonexistent/numa_maps"), std::string::npos);
  EXPECT_NE(range.smaps_reason.find("/nonexistent/smaps"), std::string::npos);
}

struct Peer {  // a child that maps and touches the backing, and stays until asked to go
  explicit Peer(const UniqueFd& fd, std::size_t bytes) {
    int ready[2];
    int go[2];
    if (pipe(ready) != 0 || pipe(go) != 0) throw std::runtime_error("pipe");
    pid = fork();
    if (pid == 0) {
      close(go[1]);
      const Mapping own = Mapping::shared(fd.get(), bytes, "peer");
      touch(own, 0, bytes);
      char byte = 1;
      if (write(ready[1], &byte, 1) != 1) _exit(1);
      (void)!read(go[0], &byte, 1);  // ends when the parent closes its end
      _exit(0);
    }
    close(go[0]);
    close(ready[1]);
    end = UniqueFd(go[1]);
    char byte = 0;
    ok = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
  }
  ~Peer() {
    end.reset();
    waitpid(pid, nullptr, 0);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  pid_t pid = -1;
  UniqueFd end;
  bool ok = false;
};

TEST(Snapshot, PssHalvesBetweenTwoAndTheBackingCountsOnce) {
  constexpr std::size_t kBytes = 8 << 20;
  const UniqueFd fd = placement::create_backing(plan::Backing::shm, kBytes);
  const Mapping mapping = Mapping::shared(fd.get(), kBytes, "test");
  placement::apply({plan::PolicyKind::bind, {0}}, mapping.data(), kBytes);
  touch(mapping, 0, kBytes);
  SnapshotInput input;
  input.label = "after_load";
  input.address = mapping.data();
  input.bytes = kBytes;
  input.backing_fd = fd.get();
  input.backing_kind = "shm";
  input.tables = {{1, 0, kBytes / 2}, {14, kBytes / 2, kBytes / 2}};
  const Json alone = Json::parse(rank_snapshot_json(input));
  EXPECT_EQ(alone["mapping"]["pss_bytes"], kBytes);
  EXPECT_EQ(alone["mapping"]["shared_bytes"], 0);
  const Peer peer(fd, kBytes);
  ASSERT_TRUE(peer.ok);
  const Json both = Json::parse(rank_snapshot_json(input));
  EXPECT_EQ(both["label"], "after_load");
  const Json& mapped = both["mapping"];
  EXPECT_EQ(mapped["rss_bytes"], kBytes);
  EXPECT_EQ(mapped["pss_bytes"], kBytes / 2);
  EXPECT_EQ(mapped["shared_bytes"], kBytes);
  EXPECT_EQ(mapped["policy"], "bind:0");
  EXPECT_EQ(mapped["node_pages"], Json({{"0", kBytes / kPage}}));
  EXPECT_EQ(mapped["kernel_page_bytes"], 4096);
  EXPECT_EQ(mapped["backing"]["kind"], "shm");
  EXPECT_EQ(mapped["backing"]["allocated_bytes"], kBytes);
  EXPECT_EQ(mapped["backing"]["inode"], placement::backing_state(fd.get()).inode);
  EXPECT_EQ(mapped["raw_numa_maps"].size(), 1U);
  EXPECT_NE(mapped["raw_numa_maps"][0].get<std::string>().find("bind:0 file=/dev/shm/"), std::string::npos);
  EXPECT_EQ(mapped["raw_smaps"].size(), 1U);
  ASSERT_EQ(both["tables"].size(), 2U);
  EXPECT_EQ(both["tables"][1]["layer"], 14);
  EXPECT_EQ(both["tables"][1]["offset"], kBytes / 2);
  const Json& pages = both["tables"][1]["move_pages"];
  EXPECT_EQ(pages["node_pages"], Json({{"0", kBytes / 2 / kPage}}));
  EXPECT_EQ(pages["unqueryable"], Json::object());
  EXPECT_EQ(pages["not_mapped_pages"], 0);
  EXPECT_EQ(pages["queried_pages"], kBytes / 2 / kPage);
  EXPECT_EQ(pages["total_pages"], kBytes / 2 / kPage);
  EXPECT_EQ(pages["sampled"], false);
  EXPECT_EQ(pages["share_error"], 0);
  EXPECT_GT(both["rank_state"]["rollup_bytes"]["rss"], kBytes);
  EXPECT_EQ(both["rank_state"]["task_policy"], "default");
  EXPECT_FALSE(both["rank_state"]["cpus"].empty());
}

TEST(Snapshot, PrivateMemoryHasNoBacking) {
  const Mapping mapping = placement::map_private(1 << 20);
  SnapshotInput input;
  input.label = "after_map";
  input.address = mapping.data();
  input.bytes = mapping.size();
  input.tables = {{1, 0, 1 << 20}};
  const Json snapshot = Json::parse(rank_snapshot_json(input));
  EXPECT_TRUE(snapshot["mapping"]["backing"].is_null());
  EXPECT_EQ(snapshot["mapping"]["rss_bytes"], 0);
  EXPECT_EQ(snapshot["tables"][0]["move_pages"]["not_mapped_pages"], kernel_names_untouched_private() ? 256 : 0);
}

TEST(Snapshot, RankWithoutTablesStillTellsItsState) {
  SnapshotInput input;
  input.label = "steady";
  const Json snapshot = Json::parse(rank_snapshot_json(input));
  EXPECT_TRUE(snapshot["mapping"].is_null());
  EXPECT_TRUE(snapshot["tables"].empty());
  EXPECT_FALSE(snapshot["rank_state"]["cpus"].empty());
}

TEST(Snapshot, OfNothingMappedOrOutsideIsAnError) {
  SnapshotInput input;
  input.label = "steady";
  input.bytes = 4096;
  EXPECT_THROW((void)rank_snapshot_json(input), Error);
  const Mapping mapping = placement::map_private(1 << 20);
  input.address = mapping.data();
  input.bytes = mapping.size();
  input.tables = {{1, 4096, 1 << 20}};
  EXPECT_THROW((void)rank_snapshot_json(input), Error);
}

TEST(Snapshot, WithoutMovePagesKeepsNumaMapsAndSaysWhy) {
  const std::string text = test::text_without_syscall(SYS_move_pages, []() -> std::string {
    const Mapping mapping = placement::map_private(1 << 20);
    touch(mapping, 0, 1 << 20);
    SnapshotInput input;
    input.label = "steady";
    input.address = mapping.data();
    input.bytes = mapping.size();
    input.tables = {{1, 0, 1 << 20}};
    return rank_snapshot_json(input);
  });
  if (text == "no seccomp") GTEST_SKIP() << "this kernel takes no seccomp filter";
  const Json snapshot = Json::parse(text);
  const Json& pages = snapshot["tables"][0]["move_pages"];
  EXPECT_TRUE(pages["value"].is_null());
  EXPECT_NE(pages["reason"].get<std::string>().find("seccomp"), std::string::npos) << pages;
  std::int64_t total = 0;
  for (const auto& count : snapshot["mapping"]["node_pages"]) total += count.get<std::int64_t>();
  EXPECT_EQ(total, 256);
}

TEST(Snapshot, WithoutGetMempolicyTheTaskPolicyIsAReason) {
  const std::string text =
      test::text_without_syscall(SYS_get_mempolicy, [] { return read_rank_state().task_policy_reason; });
  if (text == "no seccomp") GTEST_SKIP() << "this kernel takes no seccomp filter";
  EXPECT_NE(text.find("get_mempolicy of this task"), std::string::npos) << text;
}

// The last line of `numastat -p`: MB on each node, then their sum.
std::optional<double> numastat_megabytes(int pid) {
  const std::string command = fmt::format("numastat -p {} 2>/dev/null", pid);
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  char piece[4096];
  while (fgets(piece, sizeof(piece), pipe) != nullptr) text += piece;
  if (pclose(pipe) != 0) return std::nullopt;
  const std::size_t line = text.rfind("\nTotal ");
  if (line == std::string::npos) return std::nullopt;
  return std::stod(text.substr(text.find_last_of(' ', text.find_last_not_of(" \n")) + 1));
}

TEST(NumaMapsFile, AddsUpToNumastatsView) {
  const Mapping mapping = placement::map_private(48 << 20);
  touch(mapping, 0, 48 << 20);
  const auto stated = numastat_megabytes(getpid());
  if (!stated) GTEST_SKIP() << "numastat is not installed";
  std::int64_t skipped = -1;
  std::int64_t bytes = 0;
  for (const NumaMapsEntry& entry : parse_numa_maps(read_file("/proc/self/numa_maps"), &skipped)) {
    bytes += sum(entry.node_pages) * entry.kernel_page_bytes;
  }
  EXPECT_EQ(skipped, 0);
  EXPECT_GT(bytes, 48 << 20);
  EXPECT_NEAR(static_cast<double>(bytes) / (1 << 20), *stated, 1.0);  // what numastat's own run made this process touch
}

TEST(RankState, FollowsTheTaskPolicy) {
  unsigned long mask = 1;
  ASSERT_EQ(set_mempolicy(MPOL_BIND, &mask, 64), 0);
  const RankState state = read_rank_state();
  ASSERT_EQ(set_mempolicy(MPOL_DEFAULT, nullptr, 0), 0);
  EXPECT_EQ(state.task_policy, "bind:0");
  EXPECT_EQ(read_rank_state().task_policy, "default");
  EXPECT_FALSE(state.mems_allowed.empty());
  EXPECT_GT(state.rollup_bytes.at("Rss"), 0);
}

}  // namespace
}  // namespace eb::collectors
