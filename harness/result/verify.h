// Re-checks an archive of a run.
#pragma once

#include <cstddef>
#include <string>

namespace eb::result {

struct VerifyReport {
  std::size_t files = 0;
  bool complete = false;
  std::string scenario;
  std::size_t events = 0;
  std::size_t verdicts = 0;  // comparisons derived anew
};

// Every hash of MANIFEST.sha256, no file beside it, result.json of a schema version this program reads, event files
// as long as they say, and every cell, comparison and hypothesis of result.json equal to the one derived anew from
// samples/. Errors:
// Error(bad_data) that names the first file, cell or field that is wrong; Error(usage) for a folder that holds no run.
[[nodiscard]] VerifyReport verify(const std::string& path);

}  // namespace eb::result
