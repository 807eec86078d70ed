#include "harness/result/npy.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::result {

namespace {

static_assert(std::endian::native == std::endian::little, "the array is little-endian");

constexpr std::size_t kHeaderBytes = 256;  // a multiple of 64, as the format wants; room for any length
constexpr const char* kMagic = "\x93NUMPY\x01";
constexpr std::size_t kMagicBytes = 8;  // with the minor version 0
constexpr const char* kDescr =
    "{'descr': [('step', '<u4'), ('slot', '<u2'), ('kind', '<u2'), ('layer', '<i2'), ('clock', '|u1'), "
    "('pad', '|u1'), ('pad2', '<u4'), ('time_ns', '<i8')], 'fortran_order': False, 'shape': (";

std::string header(std::uint64_t count) {
  std::string text(kMagic, 7);
  text += '\0';
  constexpr std::size_t length = kHeaderBytes - kMagicBytes - 2;
  text += static_cast<char>(length & 0xFF);
  text += static_cast<char>(length >> 8);
  text += fmt::format("{}{},), }}", kDescr, count);
  text.resize(kHeaderBytes - 1, ' ');
  return text + '\n';
}

void put(int fd, const char* data, std::size_t bytes, std::size_t place, const std::string& path) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::pwrite(fd, data + done, bytes - done, static_cast<off_t>(place + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(errno, fmt::format("{}: writing {} bytes of events", path, bytes));
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace

EventFile::EventFile(const std::string& path) : path_(path) {
  fd_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd_) fail_errno(errno, path);
  write_header();
}

void EventFile::write_header() {
  const std::string text = header(count_);
  put(fd_.get(), text.data(), text.size(), 0, path_);
}

void EventFile::append(std::span<const rank::EventRecord> records) {
  put(fd_.get(), reinterpret_cast<const char*>(records.data()), records.size_bytes(),
      kHeaderBytes + count_ * sizeof(rank::EventRecord), path_);
  count_ += records.size();
  write_header();
}

void EventFile::sync() {
  if (::fsync(fd_.get()) != 0) fail_errno(errno, path_);
}

std::vector<rank::EventRecord> read_events(const std::string& path) {
  const std::string bytes = read_file(path);
  const std::string start = header(0).substr(0, kMagicBytes + 2) + kDescr;
  if (bytes.size() < kHeaderBytes || bytes.compare(0, start.size(), start) != 0) {
    fail(Exit::bad_data, "{}: not an event array of this program", path);
  }
  std::uint64_t count = 0;
  for (std::size_t i = start.size(); i < kHeaderBytes && bytes[i] >= '0' && bytes[i] <= '9'; ++i) {
    count = count * 10 + static_cast<std::uint64_t>(bytes[i] - '0');
  }
  if (count > (bytes.size() - kHeaderBytes) / sizeof(rank::EventRecord)) {
    fail(Exit::bad_data, "{}: {} events are announced, {} bytes follow", path, count, bytes.size() - kHeaderBytes);
  }
  std::vector<rank::EventRecord> records(count);
  if (count > 0) std::memcpy(records.data(), bytes.data() + kHeaderBytes, count * sizeof(rank::EventRecord));
  return records;
}

}  // namespace eb::result
