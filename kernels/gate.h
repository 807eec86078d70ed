// Gate kernel: hidden += g * value, g from the RMS-normalised dot of hidden and key.
#pragma once

#include <cstdint>

#include "harness/base/bf16.h"

namespace eb::kernels {

// For token t and copy h: key = kv[t][h*dim ..], value = kv[t][copies*dim ..] (shared by the copies);
//   d = sum(hidden*q*k*key) * rsqrt(mean(hidden^2)+eps) * rsqrt(mean(key^2)+eps) / sqrt(dim)
//   g = sigmoid(sign(d)*sqrt(max(|d|, 1e-6))), sign(0) = +1; 0 where masked[t]
// Sums in float32, one rounding at the end; a masked token's hidden stays as it is, bit for bit. Source: vLLM db9527a,
// engram.py.
struct GateArgs {
  Bf16* hidden = nullptr;                // [tokens][copies][dim]
  const Bf16* kv = nullptr;              // [tokens][(copies+1)*dim]
  const Bf16* q = nullptr;               // [copies][dim]
  const Bf16* k = nullptr;               // [copies][dim]
  const std::uint8_t* masked = nullptr;  // [tokens] or null
  std::int64_t tokens = 0;
  std::int32_t copies = 0;
  std::int32_t dim = 0;
  float eps = 1e-6F;
};

// Tokens [first, last).
void gate_tokens(const GateArgs& args, std::int64_t first, std::int64_t last);

}  // namespace eb::kernels
