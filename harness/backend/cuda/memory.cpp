#include "harness/backend/cuda/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "harness/backend/cuda/check.h"

namespace eb::backend::cuda {

namespace {

std::size_t held_bytes = 0;  // device memory of this process that allocate_device() gave; host thread only

// What a device that is full says of itself.
std::string shortage() {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (memory_calls().memory_info(&free_bytes, &total_bytes) != cudaSuccess) return "";
  const std::size_t used = total_bytes - free_bytes;
  const std::size_t others = used > held_bytes ? used - held_bytes : 0;
  return fmt::format(
      "; {} of the device's {} bytes are free, {} are held by this rank and {} by other processes and CUDA's own "
      "contexts",
      free_bytes, total_bytes, held_bytes, others);
}

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(std::size_t bytes, const char* what) : bytes_(bytes) {
    data_ = allocate_device(bytes, what);
    // cudaMemset returns before it has run, and this program's streams do not wait for the stream it runs on: without
    // the second call the zeros may land on what was written since.
    cudaError_t error = cudaMemset(data_, 0, bytes);
    if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
    if (error != cudaSuccess) {
      free_device(data_, bytes_);
      fail_cuda(error, what);
    }
  }
  ~DeviceBuffer() override { free_device(data_, bytes_); }
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
    check(memory_calls().allocate_pinned(&data_, std::max<std::size_t>(bytes, 1)),
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

// What the device reads must be what the host sees: 64 pieces over the whole length.
void compare_bytes(const std::byte* host, const std::byte* device, std::size_t bytes) {
  constexpr std::size_t kProbes = 64;
  constexpr std::size_t kProbeBytes = 64;
  std::array<std::byte, kProbeBytes> seen{};
  for (std::size_t i = 0; i < kProbes && bytes >= kProbeBytes; ++i) {
    const std::size_t at = (bytes - kProbeBytes) / kProbes * i;
    check(cudaMemcpy(seen.data(), device + at, kProbeBytes, cudaMemcpyDefault), "probe of the registered table");
    if (std::memcmp(seen.data(), host + at, kProbeBytes) != 0) {
      fail(Exit::failure, "the device reads other bytes than the mapping holds, at offset {}", at);
    }
  }
}

class HostRegistration final : public Registration {
 public:
  HostRegistration(std::byte* address, std::size_t bytes) : address_(address) {
    const cudaError_t error =
        memory_calls().host_register(address, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
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
    compare_bytes(address_, device_, bytes);
  }

  std::byte* address_;
  const std::byte* device_ = nullptr;
};

class NumaView final : public Registration {
 public:
  NumaView(const std::byte* address, std::size_t bytes) : address_(address) { compare_bytes(address, address, bytes); }
  [[nodiscard]] const std::byte* device_address() const noexcept override { return address_; }

 private:
  const std::byte* address_;  // host and device have one address
};

}  // namespace

MemoryCalls& memory_calls() noexcept {
  static MemoryCalls calls{[](void** address, std::size_t bytes) { return cudaMalloc(address, bytes); },
                           [](void** address, std::size_t bytes) { return cudaMallocHost(address, bytes); },
                           cudaHostRegister, cudaMemGetInfo};
  return calls;
}

void* allocate_device(std::size_t bytes, const std::string& what) {
  void* address = nullptr;
  const cudaError_t error = memory_calls().allocate(&address, std::max<std::size_t>(bytes, 1));
  if (error != cudaSuccess) {
    const std::string figures = error == cudaErrorMemoryAllocation ? shortage() : "";
    fail_cuda(error, fmt::format("{}: {} bytes of device memory{}", what, bytes, figures));
  }
  held_bytes += bytes;
  return address;
}

void free_device(void* address, std::size_t bytes) noexcept {
  if (address == nullptr) return;
  held_bytes -= bytes;
  ignore(cudaFree(address));
}

std::unique_ptr<Buffer> make_buffer(std::size_t bytes, MemoryKind kind, const char* what) {
  if (kind == MemoryKind::device) return std::make_unique<DeviceBuffer>(bytes, what);
  return std::make_unique<PinnedBuffer>(bytes, what);
}

std::unique_ptr<Registration> register_mapping(std::byte* address, std::size_t bytes) {
  return std::make_unique<HostRegistration>(address, bytes);
}

std::unique_ptr<Registration> view_numa_memory(std::byte* address, std::size_t bytes) {
  return std::make_unique<NumaView>(address, bytes);
}

}  // namespace eb::backend::cuda
