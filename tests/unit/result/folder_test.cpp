#include "harness/result/folder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "tests/unit/result/support.h"

namespace eb::result {
namespace {

namespace fs = std::filesystem;

TEST(Folder, AnExistingFolderIsAUsageError) {
  const TemporaryFolder base;
  fs::create_directory(base / "run");
  try {
    const RunFolder folder(base / "run", false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("--force"), std::string::npos);
  }
}

TEST(Folder, ForceReplacesARunAndNothingElse) {
  const TemporaryFolder base;
  {
    RunFolder folder(base / "run", false);
    folder.write("result.json", "{}");
    folder.write("samples/x.jsonl", "old");
    folder.write("notes.txt", "mine");
  }
  const RunFolder again(base / "run", true);
  EXPECT_FALSE(fs::exists(base / "run/samples/x.jsonl"));
  EXPECT_FALSE(fs::exists(base / "run/result.json"));
  EXPECT_EQ(read_file(base / "run/notes.txt"), "mine");
  fs::create_directory(base / "home");
  fs::create_directory(base / "home/precious");
  EXPECT_THROW(RunFolder(base / "home", true), Error);  // not a run: never overwritten
  EXPECT_TRUE(fs::exists(base / "home/precious"));
}

TEST(Folder, APlaceThatCannotBeMadeIsAFailure) {
  const TemporaryFolder base;
  write_file_atomic(base / "file", std::string("x"));
  try {
    const RunFolder folder(base / "file/run", false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::failure);
  }
}

// The manifest is there before a result says that it is complete.
TEST(Folder, SealListsEveryFileAndTheResult) {
  const TemporaryFolder base;
  RunFolder folder(base / "run", false);
  folder.write("plan.json", "{}");
  folder.append_log("one");
  folder.append_log("two");
  folder.seal("{\"complete\": true}");
  const std::string manifest = read_file(base / "run/MANIFEST.sha256");
  EXPECT_NE(manifest.find("  log.txt\n"), std::string::npos);
  EXPECT_NE(manifest.find("  plan.json\n"), std::string::npos);
  EXPECT_NE(manifest.find("  result.json\n"), std::string::npos);
  EXPECT_EQ(read_file(base / "run/log.txt"), "one\ntwo\n");
}

TEST(Folder, DefaultNameIsSafe) {
  EXPECT_TRUE(default_folder("a1").starts_with("results/a1-2"));
  EXPECT_TRUE(default_folder("../x y").starts_with("results/run.._x_y-"));
  EXPECT_TRUE(default_folder("a1").ends_with("Z"));
}

TEST(Npy, GrowsAndStaysReadable) {
  const TemporaryFolder base;
  EventFile file(base / "e.npy");
  EXPECT_TRUE(read_events(base / "e.npy").empty());
  const auto events = tiny_events(3, 2);
  file.append(events);
  file.append(events);
  file.sync();
  const auto back = read_events(base / "e.npy");
  ASSERT_EQ(back.size(), events.size() * 2);
  EXPECT_EQ(back[events.size()].time_ns, events[0].time_ns);
  EXPECT_EQ(back.back().kind, events.back().kind);
  EXPECT_EQ(back[0].slot, 3);
}

TEST(Npy, ATornTailIsNotPartOfTheArray) {
  const TemporaryFolder base;
  EventFile file(base / "e.npy");
  file.append(tiny_events(0, 1));
  const std::uint64_t count = file.count();
  const std::string before = read_file(base / "e.npy");
  write_file_atomic(base / "torn.npy", before + "half a record");  // killed between data and header
  EXPECT_EQ(read_events(base / "torn.npy").size(), count);
  write_file_atomic(base / "short.npy", before.substr(0, before.size() - 5));
  EXPECT_THROW((void)read_events(base / "short.npy"), Error);
  write_file_atomic(base / "other.npy", std::string(300, 'x'));
  EXPECT_THROW((void)read_events(base / "other.npy"), Error);
}

// A limit on the size of files stands in for a full disk: the write fails, and what was there stays valid.
TEST(Npy, AFullDiskIsAnErrorThatNamesTheFile) {
  const TemporaryFolder base;
  EventFile file(base / "e.npy");
  file.append(tiny_events(0, 1));
  const std::uint64_t count = file.count();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 4096;
  ::setrlimit(RLIMIT_FSIZE, &small);
  std::string text;
  try {
    file.append(tiny_events(0, 100));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::failure);
    text = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_NE(text.find("e.npy"), std::string::npos);
  EXPECT_EQ(read_events(base / "e.npy").size(), count);
}

}  // namespace
}  // namespace eb::result
