// The parts of a real rank: backend, step pipeline, collectors.
#pragma once

#include "harness/rank/rank_main.h"

namespace eb::rank {

[[nodiscard]] RankParts real_parts();

}  // namespace eb::rank
