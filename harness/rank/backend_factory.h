// The backend a scenario asks for.
#pragma once

#include <memory>

#include "harness/backend/backend.h"
#include "harness/rank/rank_main.h"

namespace eb::rank {

// auto: the CPU, as this build has no GPU backend. Errors: Error(skipped) for cuda, which this build does not have.
[[nodiscard]] std::unique_ptr<backend::Backend> make_backend(const RankContext& context);

// Why `kind` cannot run here; empty: it can.
[[nodiscard]] std::string missing_backend(plan::BackendKind kind);

}  // namespace eb::rank
