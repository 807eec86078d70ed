// How an operation is called in error texts.
#pragma once

#include <fmt/format.h>

#include <string>

#include "harness/backend/backend.h"

namespace eb::backend::cpu {

[[nodiscard]] inline std::string op_text(Op op) {
  return op.layer < 0 ? std::string(name(op.kind)) : fmt::format("{} of layer {}", name(op.kind), op.layer);
}

}  // namespace eb::backend::cpu
