#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>

#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"
#include "harness/base/sha256.h"

namespace eb {

void fail_errno(int number, const std::string& what) { fail(Exit::failure, "{}: {}", what, std::strerror(number)); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    address_ = std::exchange(other.address_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    owned_ = std::exchange(other.owned_, true);
  }
  return *this;
}

void Mapping::reset() noexcept {
  void* const address = std::exchange(address_, nullptr);
  const std::size_t bytes = std::exchange(bytes_, 0);
  if (std::exchange(owned_, true) && address != nullptr) ::munmap(address, bytes);
}

namespace {
Mapping map(std::size_t bytes, int flags, int fd, const char* what) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (address == MAP_FAILED) fail_errno(errno, fmt::format("{}: mmap of {} bytes", what, bytes));
  return {address, bytes};
}
}  // namespace

Mapping Mapping::shared(int fd, std::size_t bytes, const char* what) { return map(bytes, MAP_SHARED, fd, what); }

Mapping Mapping::anonymous(std::size_t bytes, const char* what) {
  return map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, what);
}

std::int64_t now_ns() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

UniqueFd make_memfd(const char* name, std::size_t bytes) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd) fail_errno(errno, fmt::format("memfd_create({})", name));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    fail_errno(errno, fmt::format("memfd {}: truncate to {} bytes", name, bytes));
  }
  return fd;
}

std::string read_file(const std::string& path, std::size_t most) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail_errno(errno, path);
  std::string text;
  std::array<char, 1 << 16> piece;
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(errno, path);
    if (got == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
    if (text.size() > most) fail(Exit::failure, "{}: longer than the {} bytes that are read", path, most);
  }
}

void write_file_atomic(const std::string& path, std::span<const std::byte> bytes) {
  const std::string temporary = path + ".tmp";
  const auto undo_and_fail = [&](int number) {
    ::unlink(temporary.c_str());
    fail_errno(number, path);
  };
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) fail_errno(errno, path);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) undo_and_fail(errno);
    done += static_cast<std::size_t>(put);
  }
  if (::fsync(fd.get()) != 0) undo_and_fail(errno);
  if (::rename(temporary.c_str(), path.c_str()) != 0) undo_and_fail(errno);
}

void write_file_atomic(const std::string& path, const std::string& text) {
  write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())));
}

std::size_t page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

int pci_numa_node(const std::string& bus_id, const std::string& root) {
  // A file with one number and nothing else; -1: it is not that ("0-1" of a machine with several nodes).
  const auto number = [](const std::string& path) {
    std::ifstream file(path);
    int value = -1;
    std::string rest;
    return file >> value && !(file >> rest) ? value : -1;
  };
  const int told = number(root + "/sys/bus/pci/devices/" + bus_id + "/numa_node");
  return told >= 0 ? told : number(root + "/sys/devices/system/node/online");
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (state_->context == nullptr || EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) != 1) {
    fail(Exit::failure, "SHA-256: libcrypto refused to start");
  }
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) != 1) fail(Exit::failure, "SHA-256: update failed");
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned length = 0;
  if (EVP_DigestFinal_ex(state_->context, sum.data(), &length) != 1) fail(Exit::failure, "SHA-256: final failed");
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", sum[i]);
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 sum;
  sum.update(bytes);
  return sum.hex();
}

std::string sha256_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail_errno(errno, path);
  Sha256 sum;
  std::array<std::byte, 1 << 16> piece;
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(errno, path);
    if (got == 0) return sum.hex();
    sum.update(std::span(piece).first(static_cast<std::size_t>(got)));
  }
}

}  // namespace eb
