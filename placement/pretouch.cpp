#include "placement/pretouch.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace eb::placement {

namespace {

int usable_cpus() {
  cpu_set_t set;
  // Fails where the machine has more CPUs than cpu_set_t has bits; then the count of online CPUs must do.
  const int count = ::sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, count);
}

}  // namespace

int pretouch_threads(plan::PretouchKind kind, int threads, bool leader) {
  if (!leader) return 0;
  switch (kind) {
    case plan::PretouchKind::none:
      return 0;
    case plan::PretouchKind::leader:
      return 1;
    case plan::PretouchKind::parallel:
      return threads > 0 ? threads : usable_cpus();
  }
  return 0;
}

}  // namespace eb::placement
