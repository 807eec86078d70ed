// The two sources of what a row must be: recomputed synthetic content, or the checkpoint's files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "harness/engram/geometry.h"
#include "harness/plan/scenario.h"
#include "harness/rank/step_runner.h"

namespace eb::rank {

// `geometry` must outlive the reference. Thread-safe.
[[nodiscard]] std::unique_ptr<RowReference> make_synthetic_reference(const engram::Geometry& geometry,
                                                                     std::uint64_t seed);
// Errors: as Checkpoint.
[[nodiscard]] std::unique_ptr<RowReference> make_checkpoint_reference(const engram::Geometry& geometry,
                                                                      const std::string& folder);
// Of storage.checkpoint, or synthetic of `seed` where that is empty.
[[nodiscard]] std::unique_ptr<RowReference> make_row_reference(const plan::Scenario& scenario,
                                                               const engram::Geometry& geometry);

}  // namespace eb::rank
