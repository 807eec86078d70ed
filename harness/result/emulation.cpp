#include "harness/result/emulation.h"

#include <cstdlib>
#include <cstring>
#include <string_view>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace eb::result {

namespace {

#if defined(__x86_64__) || defined(__i386__)
bool tcg_signature() {
  constexpr unsigned kHypervisorBit = 1U << 31;
  constexpr unsigned kHypervisorLeaf = 0x40000000;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kHypervisorBit) == 0) return false;
  __cpuid(kHypervisorLeaf, a, b, c, d);
  char text[12];
  std::memcpy(text, &b, 4);
  std::memcpy(text + 4, &c, 4);
  std::memcpy(text + 8, &d, 4);
  return std::string_view(text, sizeof text) == "TCGTCGTCGTCG";
}
#else
bool tcg_signature() { return false; }
#endif

}  // namespace

bool emulated_time() {
  const char* set = std::getenv("ENGRAM_BENCH_EMULATED_TIME");
  return (set != nullptr && std::string_view(set) == "1") || tcg_signature();
}

}  // namespace eb::result
