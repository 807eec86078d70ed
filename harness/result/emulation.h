// Whether this machine's time is kept by a software emulator: then its times mean nothing.
#pragma once

namespace eb::result {

// CPUID's hypervisor signature of QEMU's TCG, or ENGRAM_BENCH_EMULATED_TIME=1, which a guest's start script sets where
// the processor does not say so.
[[nodiscard]] bool emulated_time();

}  // namespace eb::result
