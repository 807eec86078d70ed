#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "harness/backend/cuda/cuda.h"
#include "harness/base/error.h"

namespace eb::backend::cuda {

namespace {

constexpr const char* kModule = "libengram-bench-cuda.so";

struct Module {
  ProbeFunction probe = nullptr;
  MakeFunction make = nullptr;
  std::string reason;  // why the functions are null
};

Module load() {
  Module module;
  // Asked first: without a driver there is no need to load CUDA's libraries, which are large.
  if (void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL); driver == nullptr) {
    module.reason = "no CUDA driver (libcuda.so.1) on this machine";
    return module;
  }
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  // Tests lie deeper in the build folder than the program does.
  for (auto folder = program.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    const auto path = folder / kModule;
    if (std::filesystem::exists(path, error)) {
      void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle == nullptr) {
        module.reason = fmt::format("the CUDA module does not load: {}", ::dlerror());
        return module;
      }
      module.probe = reinterpret_cast<ProbeFunction>(::dlsym(handle, kProbeSymbol));
      module.make = reinterpret_cast<MakeFunction>(::dlsym(handle, kMakeSymbol));
      if (module.probe == nullptr || module.make == nullptr) {
        module.reason = fmt::format("{} is not of this program's version", path.string());
      }
      return module;
    }
    if (folder == folder.root_path()) break;
  }
  module.reason = fmt::format("this build has no CUDA module ({} beside the program)", kModule);
  return module;
}

// Loaded once and kept: CUDA's libraries do not survive being unloaded.
const Module& module() {
  static const Module loaded = load();
  return loaded;
}

}  // namespace

Probe probe() noexcept {
  Probe result;
  try {
    if (!module().reason.empty()) {
      result.reason = module().reason;
    } else {
      module().probe(&result);
    }
  } catch (const std::exception& error) {
    result.devices = 0;
    result.reason = error.what();
  }
  return result;
}

std::unique_ptr<Backend> make_backend(const Options& options) {
  const Probe found = probe();
  if (found.devices == 0) fail(Exit::skipped, "device.backend cuda: {}", found.reason);
  std::unique_ptr<Backend> backend;
  module().make(&options, &backend);
  return backend;
}

}  // namespace eb::backend::cuda
