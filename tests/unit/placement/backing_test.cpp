#include "placement/backing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "placement/pretouch.h"
#include "tests/unit/temporary_folder.h"

namespace eb::placement {
namespace {

namespace fs = std::filesystem;

int names_in_shm() {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with(fmt::format("engram_bench_{}_", getpid()))) ++count;
  }
  return count;
}

TEST(CreateBacking, HasNoNameAndAllocatesNothingUntilTouched) {
  for (const plan::Backing kind : {plan::Backing::shm, plan::Backing::memfd}) {
    const UniqueFd fd = create_backing(kind, 8 << 20);
    EXPECT_EQ(names_in_shm(), 0);
    EXPECT_EQ(backing_state(fd.get()).allocated_bytes, 0);
    const Mapping mapping = Mapping::shared(fd.get(), 8 << 20, "test");
    for (std::size_t at = 0; at < (4U << 20U); at += 4096) mapping.data()[at] = std::byte{1};
    // Transparent huge pages may round up to 2 MiB; half of the file stays a hole.
    EXPECT_EQ(backing_state(fd.get()).allocated_bytes, 4 << 20);
    EXPECT_NE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(CreateBacking, RefusesWhatIsNotBuilt) {
  for (const plan::Backing kind :
       {plan::Backing::anon, plan::Backing::anon_thp, plan::Backing::cuda_host_numa, plan::Backing::hbm}) {
    EXPECT_THROW((void)create_backing(kind, 4096), Error);
  }
}

// Two mappings side by side stay two: numa_maps and smaps speak of each alone.
TEST(MapPrivate, NeighboursDoNotMerge) {
  const Mapping a = map_private(1 << 20);
  const Mapping b = map_private(1 << 20);
  const Mapping c = map_private(1 << 20);
  const std::string maps = read_file("/proc/self/maps");
  for (const Mapping* each : {&a, &b, &c}) {
    const auto start = reinterpret_cast<std::uintptr_t>(each->data());
    EXPECT_NE(maps.find(fmt::format("{:x}-{:x} rw-p", start, start + each->size())), std::string::npos);
    each->data()[0] = std::byte{1};
  }
}

TEST(StockFile, IsExclusiveAndNamedAfterItsOwner) {
  const NamedFile first = create_stock_file(1 << 20);
  const NamedFile second = create_stock_file(1 << 20);
  EXPECT_NE(first.path, second.path);
  EXPECT_EQ(first.path, fmt::format("/dev/shm/engram_bench_{}_{}_0", getpid(), process_start_time(getpid())));
  const UniqueFd again = open_stock_file(first.path);
  EXPECT_EQ(backing_state(again.get()).inode, backing_state(first.fd.get()).inode);
  EXPECT_NE(backing_state(second.fd.get()).inode, backing_state(first.fd.get()).inode);
  unlink_stock_file(first.path);
  unlink_stock_file(second.path);
  EXPECT_EQ(names_in_shm(), 0);
  EXPECT_THROW((void)open_stock_file(first.path), Error);
}

TEST(StockFile, NothingIsLeftWhereTheSizeIsRefused) {
  EXPECT_THROW((void)create_stock_file(std::size_t{1} << 63U), Error);
  EXPECT_EQ(names_in_shm(), 0);
}

TEST(StaleNames, OfADeadOwnerGoAndOfALiveOneStay) {
  const TemporaryFolder folder;
  const std::int64_t own_start = process_start_time(getpid());
  ASSERT_GT(own_start, 0);
  // A child that has ended: its pid is free or someone else's, its start time matches nobody.
  const pid_t child = fork();
  if (child == 0) _exit(0);
  const std::int64_t child_start = process_start_time(getpid()) + 1;
  waitpid(child, nullptr, 0);
  folder.write(fmt::format("engram_bench_{}_{}_0", child, child_start), "dead");
  folder.write(fmt::format("engram_bench_{}_{}_0", getpid(), own_start - 5), "pid used again");
  folder.write(fmt::format("engram_bench_{}_{}_0", getpid(), own_start), "live");
  folder.write("engram_bench_x_1_0", "not a name of ours");
  folder.write("engram_bench_1_2", "nor this");
  folder.write("engram_bench_999999999_1_0_tail", "nor this");
  folder.write("other", "nor this");
  EXPECT_EQ(remove_stale_stock_files(folder.path()), 2);
  EXPECT_TRUE(fs::exists(folder / fmt::format("engram_bench_{}_{}_0", getpid(), own_start)));
  EXPECT_FALSE(fs::exists(folder / fmt::format("engram_bench_{}_{}_0", getpid(), own_start - 5)));
  EXPECT_TRUE(fs::exists(folder / "engram_bench_x_1_0"));
  EXPECT_TRUE(fs::exists(folder / "engram_bench_1_2"));
  EXPECT_TRUE(fs::exists(folder / "engram_bench_999999999_1_0_tail"));
  EXPECT_TRUE(fs::exists(folder / "other"));
  EXPECT_EQ(remove_stale_stock_files(folder.path()), 0);
  EXPECT_EQ(remove_stale_stock_files("/nonexistent"), 0);
}

// An owner that this pid namespace does not see still holds its file.
TEST(StaleNames, OneThatSomebodyHoldsStays) {
  const TemporaryFolder folder;
  NamedFile file = create_stock_file(4096, folder.path());
  const std::string foreign = folder / "engram_bench_999999999_1_0";
  fs::rename(file.path, foreign);
  EXPECT_EQ(remove_stale_stock_files(folder.path()), 0);
  const UniqueFd peer = open_stock_file(foreign);
  file.fd.reset();
  EXPECT_EQ(remove_stale_stock_files(folder.path()), 0);
}

TEST(StaleNames, LinksAreNotFollowed) {
  const TemporaryFolder folder;
  folder.write("victim", "keep me");
  fs::create_symlink(folder / "victim", folder / "engram_bench_999999999_1_0");
  EXPECT_EQ(remove_stale_stock_files(folder.path()), 0);
  EXPECT_TRUE(fs::exists(folder / "victim"));
}

TEST(StartTime, OfAZombieAndOfNobodyIsUnknown) {
  EXPECT_EQ(process_start_time(0x7ffffff0), -1);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(process_start_time(child), -1);
  waitpid(child, nullptr, 0);
}

// Before it the backing is empty, after it every page is there; `none`, and a peer that is not the leader, touch
// nothing.
TEST(Pretouch, AllocatesTheWholeBackingOrNothing) {
  using plan::PretouchKind;
  for (const PretouchKind kind : {PretouchKind::leader, PretouchKind::parallel}) {
    const UniqueFd fd = create_backing(plan::Backing::shm, 6 << 20);
    const Mapping mapping = Mapping::shared(fd.get(), 6 << 20, "test");
    EXPECT_EQ(pretouch(PretouchKind::none, 2, true, mapping.data(), mapping.size()), 0);
    EXPECT_EQ(pretouch(kind, 2, false, mapping.data(), mapping.size()), 0);
    EXPECT_EQ(backing_state(fd.get()).allocated_bytes, 0);
    EXPECT_EQ(pretouch(kind, 2, true, mapping.data(), mapping.size()), kind == PretouchKind::leader ? 1 : 2);
    EXPECT_EQ(backing_state(fd.get()).allocated_bytes, 6 << 20);
  }
}

}  // namespace
}  // namespace eb::placement
