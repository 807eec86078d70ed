#include "harness/backend/cuda/driver.h"

#include <cuda.h>
#include <dlfcn.h>

#include "harness/base/error.h"
#include "harness/base/symbols.h"

namespace eb::backend::cuda {

namespace {

struct Api {
  decltype(&cuGetErrorName) error_name = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_address = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
};

template <typename Function>
void resolve(void* library, const char* name, Function& function) {
  if (!find_symbol(library, name, function)) {
    fail(Exit::failure, "storage.backing cuda-host-numa: the driver lacks {}: update it, or use storage.backing shm",
         name);
  }
}

const Api& api() {
  static const Api loaded = [] {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail(Exit::failure, "no CUDA driver: {}", ::dlerror());
    Api found;
    resolve(library, "cuGetErrorName", found.error_name);
    resolve(library, "cuGetErrorString", found.error_string);
    resolve(library, "cuDeviceGetAttribute", found.device_attribute);
    resolve(library, "cuMemGetAllocationGranularity", found.granularity);
    resolve(library, "cuMemCreate", found.create);
    resolve(library, "cuMemRelease", found.release);
    resolve(library, "cuMemExportToShareableHandle", found.export_handle);
    resolve(library, "cuMemImportFromShareableHandle", found.import_handle);
    resolve(library, "cuMemAddressReserve", found.reserve);
    resolve(library, "cuMemAddressFree", found.free_address);
    resolve(library, "cuMemMap", found.map);
    resolve(library, "cuMemUnmap", found.unmap);
    resolve(library, "cuMemSetAccess", found.set_access);
    return found;
  }();
  return loaded;
}

CUmemAllocationProp on_node(int node) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  properties.location.id = node;
  return properties;
}

CUdeviceptr number(const std::byte* address) noexcept { return reinterpret_cast<CUdeviceptr>(address); }

class LoadedDriver final : public DriverMemory {
 public:
  explicit LoadedDriver(int device) : device_(device) {
    require(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "has no memory on NUMA nodes");
    require(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "passes no memory on by descriptor");
  }

  int granularity(int node, std::size_t* bytes) override {
    const CUmemAllocationProp properties = on_node(node);
    return api().granularity(bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  }
  int create(int node, std::size_t bytes, Handle* handle) override {
    const CUmemAllocationProp properties = on_node(node);
    CUmemGenericAllocationHandle made = 0;
    const CUresult result = api().create(&made, bytes, &properties, 0);
    *handle = made;
    return result;
  }
  int export_descriptor(Handle handle, int* fd) override {
    return api().export_handle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }
  int import_descriptor(int fd, Handle* handle) override {
    CUmemGenericAllocationHandle found = 0;
    // The descriptor itself goes where a pointer to other kinds of handles would.
    void* as_pointer = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
    const CUresult result = api().import_handle(&found, as_pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    *handle = found;
    return result;
  }
  int release(Handle handle) override { return api().release(handle); }
  int reserve(std::size_t bytes, std::byte** address) override {
    CUdeviceptr found = 0;
    const CUresult result = api().reserve(&found, bytes, 0, 0, 0);
    *address = reinterpret_cast<std::byte*>(found);
    return result;
  }
  int free_reserved(std::byte* address, std::size_t bytes) override {
    return api().free_address(number(address), bytes);
  }
  int map(std::byte* address, std::size_t bytes, Handle handle) override {
    return api().map(number(address), bytes, 0, handle, 0);
  }
  int unmap(std::byte* address, std::size_t bytes) override { return api().unmap(number(address), bytes); }
  int allow_host(std::byte* address, std::size_t bytes, int node) override {
    return allow(address, bytes, CU_MEM_LOCATION_TYPE_HOST_NUMA, node);
  }
  int allow_device(std::byte* address, std::size_t bytes) override {
    return allow(address, bytes, CU_MEM_LOCATION_TYPE_DEVICE, device_);
  }
  [[nodiscard]] std::string what(int error) override {
    const char* name = nullptr;
    const char* text = nullptr;
    const auto result = static_cast<CUresult>(error);
    if (api().error_name(result, &name) != CUDA_SUCCESS || name == nullptr) return fmt::format("error {}", error);
    if (api().error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "";
    const char* remedy = "";
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      remedy = "; the NUMA node has too little free memory: use a smaller model.table_scale or another node";
    }
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_DEVICE) {
      remedy = "; the driver does not take this NUMA node or size";
    }
    return fmt::format("{} ({}){}", name, text, remedy);
  }

 private:
  void require(CUdevice_attribute attribute, const char* missing) const {
    int supported = 0;
    if (api().device_attribute(&supported, attribute, device_) != CUDA_SUCCESS || supported == 0) {
      fail(Exit::skipped, "storage.backing cuda-host-numa: device {} {} (driver or platform); use storage.backing shm",
           device_, missing);
    }
  }
  static int allow(std::byte* address, std::size_t bytes, CUmemLocationType type, int id) {
    CUmemAccessDesc access{};
    access.location.type = type;
    access.location.id = id;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return api().set_access(number(address), bytes, &access, 1);
  }

  int device_;
};

}  // namespace

std::unique_ptr<DriverMemory> make_driver_memory(int device) { return std::make_unique<LoadedDriver>(device); }

}  // namespace eb::backend::cuda
