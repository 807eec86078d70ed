#include "harness/backend/fake/stand_in_driver.h"

#include <fcntl.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::backend::fake {

// Errors are errno values here.
int StandInDriver::planted(const std::string& call) {
  const auto found = faults_.find({call, calls_[call]++});
  return found == faults_.end() ? 0 : found->second;
}

int StandInDriver::granularity(int /*node*/, std::size_t* bytes) {
  *bytes = kGranularity;
  return planted("granularity");
}

int StandInDriver::create(int /*node*/, std::size_t bytes, Handle* handle) {
  if (const int error = planted("create"); error != 0) return error;
  if (bytes == 0 || bytes % kGranularity != 0) return EINVAL;
  *handle = next_++;
  memory_[*handle] = make_memfd("engram-bench numa piece", bytes);
  return 0;
}

int StandInDriver::export_descriptor(Handle handle, int* fd) {
  if (const int error = planted("export"); error != 0) return error;
  const auto found = memory_.find(handle);
  if (found == memory_.end()) return EINVAL;
  *fd = ::fcntl(found->second.get(), F_DUPFD_CLOEXEC, 0);
  return *fd < 0 ? errno : 0;
}

int StandInDriver::import_descriptor(int fd, Handle* handle) {
  if (const int error = planted("import"); error != 0) return error;
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return errno;
  *handle = next_++;
  memory_[*handle] = std::move(own);
  return 0;
}

int StandInDriver::release(Handle handle) { return memory_.erase(handle) == 1 ? 0 : EINVAL; }

int StandInDriver::reserve(std::size_t bytes, std::byte** address) {
  if (const int error = planted("reserve"); error != 0) return error;
  void* found = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return errno;
  *address = static_cast<std::byte*>(found);
  reserved_bytes_ += bytes;
  return 0;
}

int StandInDriver::free_reserved(std::byte* address, std::size_t bytes) {
  if (::munmap(address, bytes) != 0) return errno;
  reserved_bytes_ -= bytes;
  return 0;
}

int StandInDriver::map(std::byte* address, std::size_t bytes, Handle handle) {
  if (const int error = planted("map"); error != 0) return error;
  const auto found = memory_.find(handle);
  struct stat state {};
  // A mapping of another size than the allocation's: what a wrong size beside a descriptor leads to.
  if (found == memory_.end() || ::fstat(found->second.get(), &state) != 0 ||
      static_cast<std::size_t>(state.st_size) != bytes) {
    return EINVAL;
  }
  if (::mmap(address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second.get(), 0) == MAP_FAILED) return errno;
  mapped_bytes_ += bytes;
  return 0;
}

int StandInDriver::unmap(std::byte* address, std::size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (::mmap(address, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED) return errno;
  mapped_bytes_ -= bytes;
  return 0;
}

// The pages come here, on their node: the driver's are there from create() on.
int StandInDriver::allow_host(std::byte* address, std::size_t bytes, int node) {
  if (const int error = planted("allow_host"); error != 0) return error;
  std::array<unsigned long, 16> mask{};
  constexpr int kBits = 8 * sizeof(unsigned long);
  if (node < 0 || node >= kBits * static_cast<int>(mask.size())) return EINVAL;
  mask[static_cast<std::size_t>(node / kBits)] = 1UL << static_cast<unsigned>(node % kBits);
  if (::mbind(address, bytes, MPOL_BIND, mask.data(), kBits * mask.size() + 1, 0) != 0) return errno;
  if (::mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) return errno;
  for (std::size_t at = 0; at < bytes; at += page_bytes()) {
    // Content of a piece that another process wrote stays.
    static_cast<volatile std::byte*>(address)[at] = static_cast<volatile std::byte*>(address)[at];
  }
  return 0;
}

int StandInDriver::allow_device(std::byte* /*address*/, std::size_t bytes) {
  if (const int error = planted("allow_device"); error != 0) return error;
  device_bytes_ += bytes;
  return 0;
}

std::string StandInDriver::what(int error) { return std::strerror(error); }

}  // namespace eb::backend::fake
