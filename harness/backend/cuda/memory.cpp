#include "harness/backend/cuda/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "harness/backend/cuda/check.h"

namespace eb::backend::cuda {

namespace {

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(std::size_t bytes, const char* what) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)),
          fmt::format("{}: {} bytes of device memory", what, bytes));
    // cudaMemset returns before it has run, and this program's streams do not wait for the stream it runs on: without
    // the second call the zeros may land on what was written since.
    cudaError_t error = cudaMemset(data_, 0, bytes);
    if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
    if (error != cudaSuccess) {
      ignore(cudaFree(data_));
      fail_cuda(error, what);
    }
  }
  ~DeviceBuffer() override { ignore(cudaFree(data_)); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  [[nodiscard]] std::byte* data() const noexcept override { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t size() const noexcept override { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(std::size_t bytes, const char* what) : bytes_(bytes) {
    check(cudaMallocHost(&data_, std::max<std::size_t>(bytes, 1)),
          fmt::format("{}: {} bytes of pinned memory", what, bytes));
    std::memset(data_, 0, bytes);
  }
  ~PinnedBuffer() override { ignore(cudaFreeHost(data_)); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  [[nodiscard]] std::byte* data() const noexcept override { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t size() const noexcept override { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

void check_memlock(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
    fail(Exit::failure,
         "registration of {} bytes was refused, and the memlock limit is {} bytes: raise it (ulimit -l unlimited, or "
         "--ulimit memlock=-1 for a container)",
         bytes, limit.rlim_cur);
  }
}

class HostRegistration final : public Registration {
 public:
  HostRegistration(std::byte* address, std::size_t bytes) : address_(address) {
    const cudaError_t error = cudaHostRegister(address, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      check_memlock(bytes);
      fail_cuda(error, fmt::format("cudaHostRegister of {} bytes", bytes));
    }
    try {
      void* device = nullptr;
      check(cudaHostGetDevicePointer(&device, address, 0), "cudaHostGetDevicePointer");
      device_ = static_cast<const std::byte*>(device);
      verify(bytes);
    } catch (...) {
      ignore(cudaHostUnregister(address_));
      throw;
    }
  }
  ~HostRegistration() override { ignore(cudaHostUnregister(address_)); }
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;
  [[nodiscard]] const std::byte* device_address() const noexcept override { return device_; }

 private:
  // The device must see the mapping's own pages, not a private copy of them.
  void verify(std::size_t bytes) const {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, device_), "cudaPointerGetAttributes");
    if (attributes.type != cudaMemoryTypeHost || attributes.hostPointer != address_) {
      fail(Exit::failure,
           "the registered table's device address does not lead to the mapping (type {}, host pointer {})",
           static_cast<int>(attributes.type), attributes.hostPointer);
    }
    constexpr std::size_t kProbes = 64;
    constexpr std::size_t kProbeBytes = 64;
    std::array<std::byte, kProbeBytes> seen{};
    for (std::size_t i = 0; i < kProbes && bytes >= kProbeBytes; ++i) {
      const std::size_t at = (bytes - kProbeBytes) / kProbes * i;
      check(cudaMemcpy(seen.data(), device_ + at, kProbeBytes, cudaMemcpyDefault), "probe of the registered table");
      if (std::memcmp(seen.data(), address_ + at, kProbeBytes) != 0) {
        fail(Exit::failure, "the device reads other bytes than the mapping holds, at offset {}", at);
      }
    }
  }

  std::byte* address_;
  const std::byte* device_ = nullptr;
};

}  // namespace

std::unique_ptr<Buffer> make_buffer(std::size_t bytes, MemoryKind kind, const char* what) {
  if (kind == MemoryKind::device) return std::make_unique<DeviceBuffer>(bytes, what);
  return std::make_unique<PinnedBuffer>(bytes, what);
}

std::unique_ptr<Registration> register_mapping(std::byte* address, std::size_t bytes) {
  return std::make_unique<HostRegistration>(address, bytes);
}

}  // namespace eb::backend::cuda
