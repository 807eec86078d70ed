// What a profiler is told through NVTX, seen from the profiler's side: nvtx_recorder is loaded the way a profiler is.
// Needs the toolkit's headers and no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "harness/backend/cuda/observer.h"

namespace eb::backend::cuda {
namespace {

using testing::Contains;
using testing::ElementsAre;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// One test: NVTX looks for its tool once a process.
TEST(Nvtx, AProfilerSeesRangesByOperationAndOnlyWhereAskedFor) {
  const std::string base = testing::TempDir() + "nvtx_record";
  const std::string path = base + "." + std::to_string(::getpid());
  ::setenv("NVTX_INJECTION64_PATH", ENGRAM_BENCH_NVTX_RECORDER, 1);
  ::setenv("ENGRAM_BENCH_NVTX_RECORD", base.c_str(), 1);
  Observer observer;
  { const Watched not_begun(observer, {OpKind::hash, 0}); }
  observer.begin({.units = true});
  { const Watched not_asked_for(observer, {OpKind::hash, 0}); }
  (void)observer.end();
  EXPECT_FALSE(std::filesystem::exists(path)) << "an NVTX function was called where no ranges were asked for";

  observer.begin({.ranges = true});
  {
    const Watched lookup(observer, {OpKind::lookup, 14});
    const Watched inside(observer, {OpKind::sort, -1});
  }
  (void)observer.end();
  { const Watched over(observer, {OpKind::gate, 1}); }

  const std::vector<std::string> lines = lines_of(path);
  std::filesystem::remove(path);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front(), "domain 1 engram-bench");
  std::vector<std::string> ranges;
  for (const std::string& line : lines) {
    if (line.starts_with("push") || line.starts_with("pop")) ranges.push_back(line);
  }
  const auto category = [](OpKind kind) { return std::to_string(static_cast<int>(kind) + 1); };
  EXPECT_THAT(ranges, ElementsAre("push 1 " + category(OpKind::lookup) + " lookup of layer 14",
                                  "push 1 " + category(OpKind::sort) + " sort", "pop 1", "pop 1"));
  for (int kind = 0; kind <= static_cast<int>(OpKind::fill); ++kind) {
    const std::string named = "category 1 " + std::to_string(kind + 1) + " " + name(static_cast<OpKind>(kind));
    EXPECT_THAT(lines, Contains(named));
  }
}

}  // namespace
}  // namespace eb::backend::cuda
