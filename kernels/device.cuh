// Device helpers that several kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/lookup.h"

namespace eb::kernels {

// Id of row `row` of a lookup, negative for a padded head. Rows of a step stay below 2^31 (checked by the caller's
// buffers).
__device__ __forceinline__ std::int32_t row_id(const LookupArgs& args, std::int64_t row) {
  const auto token = static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(args.heads);
  const auto head = static_cast<std::int32_t>(static_cast<std::uint32_t>(row) - token * args.heads);
  return head < args.columns ? __ldg(args.ids + token * args.id_token_stride + args.id_offset + head) : -1;
}

// A table is read once and never written while kernels run: past L1, through the read-only path.
__device__ __forceinline__ uint4 load_table16(const std::byte* address) {
  uint4 value;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(address));
  return value;
}

__device__ __forceinline__ uint2 load_table8(const std::byte* address) {
  uint2 value;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(address));
  return value;
}

__device__ __forceinline__ std::uint32_t load_table1(const std::byte* address) {
  std::uint32_t value;
  asm("ld.global.nc.L1::no_allocate.u8 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

// Of the SM that this thread runs on.
__device__ __forceinline__ std::uint32_t sm_number() {
  std::uint32_t number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

// BF16 bits, rounded to nearest even; every NaN becomes 0x7FC0 with the sign dropped, as in the CPU twin.
__device__ __forceinline__ std::uint32_t bf16_bits(float value) {
  const std::uint32_t bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  return (bits & 0x7FFFU) > 0x7F80U ? 0x7FC0U : bits;
}

// Two E4M3 codes (low 16 bits of `codes`) times `factor`, as two BF16 in one word. The conversion to half and the
// product in float32 are exact but for subnormal results, which are not flushed; the one rounding is the last step.
__device__ __forceinline__ std::uint32_t dequantise(std::uint32_t codes, float factor) {
  std::uint32_t halves;
  asm("{ .reg .b16 low; cvt.u16.u32 low, %1; cvt.rn.f16x2.e4m3x2 %0, low; }" : "=r"(halves) : "r"(codes));
  const float2 values = __half22float2(*reinterpret_cast<const __half2*>(&halves));
  return bf16_bits(__fmul_rn(values.x, factor)) | bf16_bits(__fmul_rn(values.y, factor)) << 16;
}

__device__ __forceinline__ float2 unpack_bf16(std::uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U));
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  return bf16_bits(low) | bf16_bits(high) << 16;
}

}  // namespace eb::kernels
