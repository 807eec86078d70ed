#include "kernels/cpu_variant.h"

#include <array>

namespace eb::kernels {

const char* name(CpuVariant variant) noexcept {
  switch (variant) {
    case CpuVariant::baseline:
      return "baseline";
    case CpuVariant::avx2:
      return "avx2";
    case CpuVariant::avx512:
      return "avx512";
  }
  return "?";
}

bool supported(CpuVariant variant) noexcept {
#if defined(__x86_64__)
  // The builtin also asks the operating system (XGETBV) whether it saves the wide registers.
  switch (variant) {
    case CpuVariant::baseline:
      return true;
    case CpuVariant::avx2:
      return __builtin_cpu_supports("avx2") != 0;
    case CpuVariant::avx512:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
  }
  return false;
#else
  return variant == CpuVariant::baseline;
#endif
}

CpuVariant best_variant() noexcept {
  static const CpuVariant best = supported(CpuVariant::avx512) ? CpuVariant::avx512
                                 : supported(CpuVariant::avx2) ? CpuVariant::avx2
                                                               : CpuVariant::baseline;
  return best;
}

std::vector<CpuVariant> supported_variants() {
  std::vector<CpuVariant> variants;
  for (const CpuVariant variant : std::array{CpuVariant::baseline, CpuVariant::avx2, CpuVariant::avx512}) {
    if (supported(variant)) variants.push_back(variant);
  }
  return variants;
}

}  // namespace eb::kernels
