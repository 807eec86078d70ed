#include "harness/rank/tables/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/base/error.h"

namespace eb::rank {

namespace {

using Json = nlohmann::json;

std::uint64_t header_length(std::string_view prefix, std::uint64_t file_bytes, const std::string& file) {
  if (file_bytes < 8 || prefix.size() < 8) {
    fail(Exit::bad_data, "{}: no safetensors file: {} bytes, a header length takes 8", file, file_bytes);
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<std::uint8_t>(prefix[static_cast<std::size_t>(i)]);
  if (length > kMaxHeaderBytes) {
    fail(Exit::bad_data, "{}: no safetensors file: a header of {} bytes, at most {} are allowed", file, length,
         kMaxHeaderBytes);
  }
  if (length > file_bytes - 8) {
    fail(Exit::bad_data, "{}: truncated: a header of {} bytes in a file of {}", file, length, file_bytes);
  }
  return length;
}

// A header is {"name": {"dtype", "shape": [..], "data_offsets": [..]}, ...}: deeper nesting, or a name twice, is
// refused while parsing, before a tree of it stands in memory.
Json parse_json(std::string_view text, const std::string& file) {
  std::set<std::string> names;
  std::string wrong;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (!wrong.empty()) return false;
    if (depth > 4) wrong = "nested too deep";
    if (event == Json::parse_event_t::key && depth == 1) {
      if (!names.insert(value.get<std::string>()).second) wrong = "the name " + value.get<std::string>() + " twice";
      if (names.size() > kMaxTensors) wrong = "too many tensors";
    }
    return wrong.empty();
  };
  Json json;
  try {
    json = Json::parse(text, check);
  } catch (const Json::exception& error) {
    fail(Exit::bad_data, "{}: the header is no JSON: {}", file, error.what());
  }
  if (!wrong.empty()) fail(Exit::bad_data, "{}: the header is wrong: {}", file, wrong);
  if (!json.is_object()) fail(Exit::bad_data, "{}: the header is no JSON object", file);
  return json;
}

std::vector<std::uint64_t> numbers(const Json& entry, const char* key, std::size_t most, const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array() || found->size() > most) {
    fail(Exit::bad_data, "{}: {} is no list of at most {} numbers", where, key, most);
  }
  std::vector<std::uint64_t> list;
  for (const Json& item : *found) {
    if (!item.is_number_unsigned()) fail(Exit::bad_data, "{}: {} has an entry that is no whole number", where, key);
    list.push_back(item.get<std::uint64_t>());
  }
  return list;
}

TensorInfo parse_entry(const std::string& name, const Json& entry, std::uint64_t data_start, std::uint64_t data_bytes,
                       const std::string& file) {
  const std::string where = fmt::format("{}: tensor {}", file, name);
  if (!entry.is_object()) fail(Exit::bad_data, "{}: its entry is no object", where);
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) fail(Exit::bad_data, "{}: dtype is no text", where);
  TensorInfo tensor;
  tensor.name = name;
  tensor.dtype = dtype->get<std::string>();
  tensor.shape = numbers(entry, "shape", kMaxDimensions, where);
  const auto offsets = numbers(entry, "data_offsets", 2, where);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    fail(Exit::bad_data, "{}: data_offsets are no range", where);
  }
  if (offsets[1] > data_bytes) {
    fail(Exit::bad_data, "{}: truncated: its data ends at byte {}, the file holds {} bytes of data", where, offsets[1],
         data_bytes);
  }
  tensor.begin = data_start + offsets[0];
  tensor.end = data_start + offsets[1];
  const std::uint64_t element = element_bytes(tensor.dtype);
  if (element == 0) return tensor;  // somebody else's tensor: only its range matters here
  std::uint64_t bytes = element;
  for (const std::uint64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) fail(Exit::bad_data, "{}: its shape overflows", where);
  }
  if (bytes != tensor.bytes()) {
    fail(Exit::bad_data, "{}: {} [{}] takes {} bytes, its data_offsets span {}", where, tensor.dtype,
         fmt::join(tensor.shape, ", "), bytes, tensor.bytes());
  }
  return tensor;
}

}  // namespace

std::uint64_t element_bytes(std::string_view dtype) noexcept {
  constexpr std::array<std::pair<std::string_view, std::uint64_t>, 17> kSizes = {{{"BOOL", 1},
                                                                                  {"U8", 1},
                                                                                  {"I8", 1},
                                                                                  {"F8_E4M3", 1},
                                                                                  {"F8_E5M2", 1},
                                                                                  {"F8_E8M0", 1},
                                                                                  {"I16", 2},
                                                                                  {"U16", 2},
                                                                                  {"F16", 2},
                                                                                  {"BF16", 2},
                                                                                  {"I32", 4},
                                                                                  {"U32", 4},
                                                                                  {"F32", 4},
                                                                                  {"I64", 8},
                                                                                  {"U64", 8},
                                                                                  {"F64", 8},
                                                                                  {"C64", 8}}};
  for (const auto& [name, bytes] : kSizes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

std::vector<TensorInfo> parse_safetensors(std::string_view prefix, std::uint64_t file_bytes, const std::string& file) {
  const std::uint64_t length = header_length(prefix, file_bytes, file);
  if (prefix.size() - 8 < length) fail(Exit::failure, "{}: the header was not read whole", file);
  const Json header = parse_json(prefix.substr(8, length), file);
  const std::uint64_t data_start = 8 + length;
  const std::uint64_t data_bytes = file_bytes - data_start;
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") tensors.push_back(parse_entry(name, entry, data_start, data_bytes, file));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t end = data_start;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin < end) {
      fail(Exit::bad_data, "{}: tensor {} overlaps tensor {}", file, tensor.name, before->name);
    }
    if (tensor.begin > end) {
      fail(Exit::bad_data, "{}: {} bytes before tensor {} belong to no tensor", file, tensor.begin - end, tensor.name);
    }
    end = tensor.end;
    before = &tensor;
  }
  if (end != file_bytes) {
    fail(Exit::bad_data, "{}: {} bytes behind the last tensor{}", file, file_bytes - end,
         before == nullptr ? std::string() : " " + before->name);
  }
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!fd_) fail_errno(errno, path);
  struct stat state {};
  if (::fstat(fd_.get(), &state) != 0) fail_errno(errno, path);
  if (!S_ISREG(state.st_mode)) fail(Exit::failure, "{}: no regular file", path);
  const auto file_bytes = static_cast<std::uint64_t>(state.st_size);
  std::string prefix(std::min<std::uint64_t>(8, file_bytes), '\0');
  const auto read_all = [&](std::uint64_t from) {
    for (std::uint64_t done = from; done < prefix.size();) {
      const ssize_t got = ::pread(fd_.get(), prefix.data() + done, prefix.size() - done, static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_errno(errno, path);
      if (got == 0) fail(Exit::failure, "{}: shrank while it was read", path);
      done += static_cast<std::uint64_t>(got);
    }
  };
  read_all(0);
  prefix.resize(prefix.size() + header_length(prefix, file_bytes, path));
  read_all(8);
  tensors_ = parse_safetensors(prefix, file_bytes, path);
}

void SafetensorsFile::read(const TensorInfo& tensor, std::uint64_t first, std::span<std::uint8_t> out) const {
  if (first > tensor.bytes() || out.size() > tensor.bytes() - first) {
    fail(Exit::failure, "{}: tensor {}: bytes {}..{} asked for, it has {}", path_, tensor.name, first,
         first + out.size(), tensor.bytes());
  }
  const auto begin = static_cast<off_t>(tensor.begin + first);
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(fd_.get(), out.data() + done, out.size() - done, begin + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(errno, fmt::format("{}: tensor {}", path_, tensor.name));
    if (got == 0) fail(Exit::failure, "{}: tensor {}: the file shrank while it was read", path_, tensor.name);
    done += static_cast<std::size_t>(got);
  }
  if (out.size() >= (1U << 20)) {
    ::posix_fadvise(fd_.get(), begin, static_cast<off_t>(out.size()), POSIX_FADV_DONTNEED);
  }
}

}  // namespace eb::rank
