// The backend a scenario asks for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/rank/rank_main.h"

namespace eb::rank {

// auto: CUDA where a device is, else the CPU. Other kinds stay.
[[nodiscard]] plan::BackendKind resolve_backend(plan::BackendKind kind);

// Device of a CUDA rank, by CUDA's index: as device.rank_map lists them, else in turn. Errors: Error(skipped) for a
// device that this machine lacks.
[[nodiscard]] int cuda_device(const plan::Scenario& scenario, int rank, int devices);
// NUMA node of each CUDA device, -1 where the system states none.
[[nodiscard]] std::vector<int> cuda_device_nodes();
// Memory of each CUDA device in bytes, 0 where it is not known.
[[nodiscard]] std::vector<std::int64_t> cuda_device_memory();

// Errors: Error(skipped) for cuda on a machine without a device.
[[nodiscard]] std::unique_ptr<backend::Backend> make_backend(const RankContext& context);

// Why `kind` cannot run here; empty: it can.
[[nodiscard]] std::string missing_backend(plan::BackendKind kind);

}  // namespace eb::rank
