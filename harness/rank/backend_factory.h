// The backend a scenario asks for.
#pragma once

#include <memory>

#include "harness/backend/backend.h"
#include "harness/rank/rank_main.h"

namespace eb::rank {

// auto: CUDA where a device is, else the CPU. Other kinds stay.
[[nodiscard]] plan::BackendKind resolve_backend(plan::BackendKind kind);

// CUDA ranks take the devices in turn. Errors: Error(skipped) for cuda on a machine without a device.
[[nodiscard]] std::unique_ptr<backend::Backend> make_backend(const RankContext& context);

// Why `kind` cannot run here; empty: it can.
[[nodiscard]] std::string missing_backend(plan::BackendKind kind);

}  // namespace eb::rank
