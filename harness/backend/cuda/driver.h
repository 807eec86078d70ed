// libcuda.so.1 as host memory on NUMA nodes comes from it. Symbols are looked up when it is made: a driver that lacks
// one is an error of the scenario that needs it, not of the program's start.
#pragma once

#include <memory>

#include "harness/backend/numa/driver_memory.h"

namespace eb::backend::cuda {

// For the device of CUDA's index `device`, whose context exists. Errors: Error(failure): no driver, a symbol that it
// lacks; Error(skipped): the device or driver has no memory on NUMA nodes, or cannot pass it on by descriptor.
[[nodiscard]] std::unique_ptr<DriverMemory> make_driver_memory(int device);

}  // namespace eb::backend::cuda
