// Reader of safetensors files: 8 bytes of header length (little-endian), a JSON header, the data. Only the header is
// held in memory; data is read by ranges. Everything in the file is untrusted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/base/unique_fd.h"

namespace eb::rank {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr std::size_t kMaxTensors = 1'000'000;
inline constexpr std::size_t kMaxDimensions = 8;

struct TensorInfo {
  std::string name;
  std::string dtype;  // "F8_E4M3", "F8_E8M0", "BF16", ... as written
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // byte range in the file
  std::uint64_t end = 0;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return end - begin; }
};

// The tensors in file order. `prefix` starts at the file's first byte and holds at least the header where the file
// does; `file_bytes` is the file's size. Pure.
// Errors: Error(bad_data) that names `file`, and the tensor where it is one's fault: a header that is too long, cut
// off, no JSON, too deep or has a name twice; a wrong entry; ranges that overlap, leave holes or do not match dtype and
// shape; a file that is shorter or longer than its tensors.
[[nodiscard]] std::vector<TensorInfo> parse_safetensors(std::string_view prefix, std::uint64_t file_bytes,
                                                        const std::string& file);

// Bytes an element of `dtype` takes; 0 for one this reader does not know (or that is no whole byte).
[[nodiscard]] std::uint64_t element_bytes(std::string_view dtype) noexcept;

// An open file. Thread-safe after construction.
class SafetensorsFile {
 public:
  // Errors: Error(failure) where the file cannot be read, else as parse_safetensors.
  explicit SafetensorsFile(const std::string& path);
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const noexcept { return tensors_; }
  // Reads out.size() bytes of `tensor` from its byte `first` on. The page cache is told to forget them: a table is read
  // once, and its file pages would take the place of the tables. Errors: Error(failure) that names tensor and file.
  void read(const TensorInfo& tensor, std::uint64_t first, std::span<std::uint8_t> out) const;

 private:
  std::string path_;
  UniqueFd fd_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace eb::rank
