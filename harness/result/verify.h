// Re-checks an archive of a run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace eb::result {

struct VerifyReport {
  std::size_t files = 0;
  bool complete = false;
  std::string scenario;
  std::size_t events = 0;
  std::size_t verdicts = 0;         // comparisons derived anew
  std::size_t samples_derived = 0;  // from the events
  std::string not_derived;          // why none was; empty where they were
};

// Every hash of MANIFEST.sha256, no file beside it, result.json of a schema version this program reads, event files
// as long as they say, every sample equal to the one derived anew from the events, and every cell, comparison and
// hypothesis of result.json equal to the one derived anew from samples/. Errors: Error(bad_data) that names the first
// file, sample, cell or field that is wrong; Error(usage) for a folder that holds no run.
[[nodiscard]] VerifyReport verify(const std::string& path);

// The same of several runs, on as many threads as there are CPUs. Errors: that of the first run that has one.
[[nodiscard]] std::vector<VerifyReport> verify_all(const std::vector<std::string>& paths);

// Whether `path` holds a run that says it is complete. A run that was killed at any moment does not: result.json says
// so last, after the manifest. No error: a folder that is not there, or holds anything else, is no such run.
[[nodiscard]] bool ended_whole(const std::string& path);

// Only the hashes: every file of MANIFEST.sha256 is there with its content, and none beside them. Returns how many.
// Errors: Error(bad_data) that names the file.
std::size_t check_hashes(const std::string& path);

}  // namespace eb::result
