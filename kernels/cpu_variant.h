// The instruction sets the CPU kernels are built for. One binary holds all of them; the best one that this processor
// and its operating system support is picked at run time. Every variant of a kernel gives the same bits.
//
// The overloads with a variant exist for tests and benches: a variant that is not `supported` ends in SIGILL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/gate.h"
#include "kernels/hash.h"
#include "kernels/lookup.h"

namespace eb::kernels {

// baseline: what every processor of the architecture has (x86-64: SSE2). avx2: without FMA, so that no sum is
// contracted. avx512: F, BW, DQ, VL and VBMI (Ice Lake, Zen 4 and later).
enum class CpuVariant { baseline, avx2, avx512 };

[[nodiscard]] const char* name(CpuVariant variant) noexcept;
[[nodiscard]] bool supported(CpuVariant variant) noexcept;
[[nodiscard]] CpuVariant best_variant() noexcept;
[[nodiscard]] std::vector<CpuVariant> supported_variants();

void hash_tokens(const HashArgs& args, std::int64_t first, std::int64_t last, CpuVariant variant);
void lookup_program(const LookupArgs& args, std::int64_t program, std::int64_t grid, CpuVariant variant);
void gate_tokens(const GateArgs& args, std::int64_t first, std::int64_t last, CpuVariant variant);

}  // namespace eb::kernels
