// Messages to JSON text and back. The type number names the alternative of the variant.
#pragma once

#include <cstdint>
#include <string>

#include "harness/control/messages.h"

namespace eb::control {

struct Encoded {
  std::uint32_t type = 0;  // index in ToRank, or 16 + index in ToSupervisor
  std::string payload;     // JSON, UTF-8: bytes that are no UTF-8 are replaced
};
[[nodiscard]] Encoded encode(const ToRank& message);
[[nodiscard]] Encoded encode(const ToSupervisor& message);

// Errors: Error(failure) for a type that is unknown or of the other direction, and for a payload that is not the
// type's.
[[nodiscard]] ToRank decode_to_rank(std::uint32_t type, const std::string& payload);
[[nodiscard]] ToSupervisor decode_to_supervisor(std::uint32_t type, const std::string& payload);

}  // namespace eb::control
