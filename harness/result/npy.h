// events/rank-N.npy: one structured NumPy array that grows block by block.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/base/unique_fd.h"
#include "harness/rank/step/events.h"

namespace eb::result {

// Appends records behind the array and then puts the new length into the header, which keeps its size: at any moment
// the file is a valid array of what was appended before. Not thread-safe. Errors: Error(failure) that names the path (a
// full disk, a read-only folder); the array then still ends where the last whole append ended.
class EventFile {
 public:
  explicit EventFile(const std::string& path);  // created anew, empty
  void append(std::span<const rank::EventRecord> records);
  void sync();
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

 private:
  void write_header();
  std::string path_;
  UniqueFd fd_;
  std::uint64_t count_ = 0;
};

// Errors: Error(bad_data) for a file that is not such an array or is shorter than its header says.
[[nodiscard]] std::vector<rank::EventRecord> read_events(const std::string& path);

}  // namespace eb::result
