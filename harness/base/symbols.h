// Functions of libraries that are loaded at run time: CUDA driver, NCCL, CUPTI, NVML.
#pragma once

#include <dlfcn.h>

namespace eb {

// Sets `function` to `name` of `library` (of ::dlopen; null: none). False, and null, where it has no such function.
template <typename Function>
[[nodiscard]] bool find_symbol(void* library, const char* name, Function& function) noexcept {
  function = library == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace eb
