#include "harness/backend/cuda/kernel_spans.h"

#ifdef ENGRAM_BENCH_CUPTI

#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/symbols.h"

namespace eb::backend::cuda {

namespace {

#if CUPTI_API_VERSION >= 130000
constexpr const char* kLibrary = "libcupti.so.13";
using KernelRecord = CUpti_ActivityKernel10;
#else
constexpr const char* kLibrary = "libcupti.so.12";
using KernelRecord = CUpti_ActivityKernel9;
#endif

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
// External ids carry the operation itself: bit 40 says so, then its kind and layer.
constexpr std::uint64_t kOpMark = std::uint64_t{1} << 40;

struct Api {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetResultString) text = nullptr;
  std::string reason;  // why it is not usable
};

template <typename Function>
void resolve(void* library, const char* name, Function& function, std::string& reason) {
  if (!find_symbol(library, name, function) && reason.empty()) reason = fmt::format("{} lacks {}", kLibrary, name);
}

const Api& api() {
  static const Api loaded = [] {
    Api found;
    void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    // Where toolkits lie that are not in the loader's path.
    if (library == nullptr) library = ::dlopen(fmt::format("/usr/local/cuda/lib64/{}", kLibrary).c_str(), RTLD_NOW);
    if (library == nullptr) {
      library = ::dlopen(fmt::format("/usr/local/cuda/extras/CUPTI/lib64/{}", kLibrary).c_str(), RTLD_NOW);
    }
    if (library == nullptr) {
      found.reason =
          fmt::format("{} does not load: install CUPTI of the toolkit, or add it to LD_LIBRARY_PATH", kLibrary);
      return found;
    }
    resolve(library, "cuptiActivityRegisterCallbacks", found.register_callbacks, found.reason);
    resolve(library, "cuptiActivityEnable", found.enable, found.reason);
    resolve(library, "cuptiActivityDisable", found.disable, found.reason);
    resolve(library, "cuptiActivityFlushAll", found.flush, found.reason);
    resolve(library, "cuptiActivityGetNextRecord", found.next_record, found.reason);
    resolve(library, "cuptiActivityGetNumDroppedRecords", found.dropped, found.reason);
    resolve(library, "cuptiActivityPushExternalCorrelationId", found.push, found.reason);
    resolve(library, "cuptiActivityPopExternalCorrelationId", found.pop, found.reason);
    resolve(library, "cuptiGetTimestamp", found.timestamp, found.reason);
    resolve(library, "cuptiGetResultString", found.text, found.reason);
    return found;
  }();
  return loaded;
}

constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    // The calls themselves are not kept; without them there are no external ids.
    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};

// CUPTI's callbacks have no argument of ours, and come on threads of its own.
struct Recording {
  std::mutex mutex;
  std::vector<std::pair<std::uint32_t, KernelSpan>> spans;  // with their correlation id
  std::unordered_map<std::uint32_t, std::uint64_t> external;
  std::int64_t dropped = 0;
  std::int64_t offset_ns = 0;
  std::int64_t error_ns = 0;
  bool on = false;
};
Recording& recording() {
  static Recording one;
  return one;
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

template <typename Record>
KernelSpan span_of(const Record& record, const char* name) {
  KernelSpan span;
  span.name = name;
  span.start_ns = static_cast<std::int64_t>(record.start);
  span.end_ns = static_cast<std::int64_t>(record.end);
  span.stream = record.streamId;
  span.in_graph = record.graphId != 0;
  return span;
}

void take(const CUpti_Activity* record) {
  Recording& to = recording();
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const KernelRecord*>(record);
      KernelSpan span = span_of(kernel, kernel.name == nullptr ? "kernel" : kernel.name);
      span.grid = kernel.gridX * kernel.gridY * kernel.gridZ;
      span.threads = kernel.blockX * kernel.blockY * kernel.blockZ;
      span.registers = kernel.registersPerThread;
      to.spans.emplace_back(kernel.correlationId, std::move(span));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      to.spans.emplace_back(copy.correlationId, span_of(copy, "copy"));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      to.spans.emplace_back(fill.correlationId, span_of(fill, "fill"));
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& external = *reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
      to.external[external.correlationId] = external.externalId;
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t /*size*/,
                          std::size_t valid) {
  {
    const std::lock_guard lock(recording().mutex);
    CUpti_Activity* record = nullptr;
    while (api().next_record(buffer, valid, &record) == CUPTI_SUCCESS) take(record);
    std::size_t lost = 0;
    if (api().dropped(context, stream, &lost) == CUPTI_SUCCESS) recording().dropped += static_cast<std::int64_t>(lost);
  }
  std::free(buffer);
}

// Where CUPTI's clock lies on the host's: bracketed between two reads, the tightest of some kept.
void find_clock(std::int64_t& offset_ns, std::int64_t& error_ns) {
  constexpr int kTries = 20;
  error_ns = INT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    std::uint64_t stamp = 0;
    const std::int64_t before = now_ns();
    if (api().timestamp(&stamp) != CUPTI_SUCCESS) continue;
    const std::int64_t after = now_ns();
    if ((after - before) / 2 >= error_ns) continue;
    error_ns = (after - before) / 2;
    offset_ns = before + error_ns - static_cast<std::int64_t>(stamp);
  }
}

std::string failed(CUptiResult result, const char* what) {
  const char* text = nullptr;
  if (api().text(result, &text) != CUPTI_SUCCESS || text == nullptr) text = "unknown error";
  return fmt::format("CUPTI: {}: {} ({})", what, text, static_cast<int>(result));
}

}  // namespace

std::string begin_kernel_spans() {
  if (!api().reason.empty()) return api().reason;
  Recording& to = recording();
  static const CUptiResult registered = api().register_callbacks(give_buffer, take_buffer);
  if (registered != CUPTI_SUCCESS) return failed(registered, "register callbacks");
  {
    const std::lock_guard lock(to.mutex);
    to.spans.clear();
    to.external.clear();
    to.dropped = 0;
  }
  for (const CUpti_ActivityKind kind : kKinds) {
    if (const CUptiResult result = api().enable(kind); result != CUPTI_SUCCESS) {
      for (const CUpti_ActivityKind other : kKinds) static_cast<void>(api().disable(other));
      return failed(result, "enable activity records (another profiler may hold the device)");
    }
  }
  find_clock(to.offset_ns, to.error_ns);
  to.on = true;
  return {};
}

void push_span_op(Op op) noexcept {
  if (!recording().on) return;
  const auto layer = static_cast<std::uint16_t>(op.layer);
  const std::uint64_t id = kOpMark | static_cast<std::uint64_t>(op.kind) << 16 | layer;
  static_cast<void>(api().push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, id));
}

void pop_span_op() noexcept {
  std::uint64_t last = 0;
  if (recording().on) static_cast<void>(api().pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last));
}

void end_kernel_spans(Observed& seen) {
  Recording& from = recording();
  if (!from.on) return;
  from.on = false;
  static_cast<void>(api().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  for (const CUpti_ActivityKind kind : kKinds) static_cast<void>(api().disable(kind));
  std::int64_t offset_ns = from.offset_ns;
  std::int64_t error_ns = 0;
  find_clock(offset_ns, error_ns);
  const std::lock_guard lock(from.mutex);
  // The two clocks may have drifted apart in between: the middle, and half of the drift is error.
  const std::int64_t drift = offset_ns - from.offset_ns;
  const std::int64_t offset = from.offset_ns + drift / 2;
  seen.clock_error_ns = std::max(error_ns, from.error_ns) + std::abs(drift) / 2;
  seen.dropped = from.dropped;
  for (auto& [correlation, span] : from.spans) {
    const auto found = from.external.find(correlation);
    if (found != from.external.end() && (found->second & kOpMark) != 0) {
      span.op = Op{static_cast<OpKind>(found->second >> 16 & 0xFF),
                   static_cast<std::int16_t>(static_cast<std::uint16_t>(found->second))};
    }
    span.start_ns += offset;
    span.end_ns += offset;
    seen.spans.push_back(std::move(span));
  }
  from.spans.clear();
  std::sort(seen.spans.begin(), seen.spans.end(),
            [](const KernelSpan& a, const KernelSpan& b) { return a.start_ns < b.start_ns; });
}

}  // namespace eb::backend::cuda

#else

namespace eb::backend::cuda {

std::string begin_kernel_spans() { return "this build has no CUPTI (cupti.h was not there)"; }
void push_span_op(Op /*op*/) noexcept {}
void pop_span_op() noexcept {}
void end_kernel_spans(Observed& /*seen*/) {}

}  // namespace eb::backend::cuda

#endif
