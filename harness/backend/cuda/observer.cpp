#include "harness/backend/cuda/observer.h"

#ifdef ENGRAM_BENCH_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

#include <algorithm>
#include <vector>

#include "harness/backend/cpu/op_text.h"
#include "harness/backend/cuda/kernel_spans.h"
#include "kernels/cuda.h"

namespace eb::backend::cuda {

namespace {

#ifdef ENGRAM_BENCH_NVTX
// Made when first observed: until then no NVTX function was called, and no tool was loaded by one.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = [] {
    const nvtxDomainHandle_t handle = nvtxDomainCreateA("engram-bench");
    for (int kind = 0; kind <= static_cast<int>(OpKind::fill); ++kind) {
      nvtxDomainNameCategoryA(handle, static_cast<std::uint32_t>(kind) + 1, name(static_cast<OpKind>(kind)));
    }
    return handle;
  }();
  return made;
}

void push_range(Op op) {
  const std::string text = cpu::op_text(op);
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.category = static_cast<std::uint32_t>(op.kind) + 1;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text.c_str();
  nvtxDomainRangePushEx(domain(), &attributes);
}
void pop_range() { nvtxDomainRangePop(domain()); }
#else
void push_range(Op /*op*/) {}
void pop_range() {}
#endif

}  // namespace

Observer::~Observer() {
  for (const auto& [layer, counts] : units_) ignore(cudaFree(counts));
}

void Observer::begin(const Observation& what) {
  what_ = what;
  on_ = true;
  no_spans_ = what.spans ? begin_kernel_spans() : "kernel records were not asked for (run --trace)";
}

Observed Observer::end() {
  Observed seen;
  on_ = false;
  seen.no_spans = no_spans_;
  if (what_.spans && no_spans_.empty()) end_kernel_spans(seen);
  std::vector<std::uint32_t> counts(kernels::kUnitCounts);
  for (const auto& [layer, on_device] : units_) {
    check(cudaMemcpy(counts.data(), on_device, counts.size() * sizeof(std::uint32_t), cudaMemcpyDeviceToHost),
          "the lookups' SMs");
    seen.lookup_units[layer] = std::count_if(counts.begin(), counts.end(), [](std::uint32_t n) { return n > 0; });
    ignore(cudaFree(on_device));
  }
  units_.clear();
  return seen;
}

void Observer::push(Op op) {
  if (what_.ranges) push_range(op);
  if (what_.spans) push_span_op(op);
}

void Observer::pop() {
  if (what_.spans) pop_span_op();
  if (what_.ranges) pop_range();
}

std::uint32_t* Observer::units_of(int layer, cudaStream_t stream) {
  if (!on_ || !what_.units) return nullptr;
  constexpr std::size_t kBytes = kernels::kUnitCounts * sizeof(std::uint32_t);
  std::uint32_t*& counts = units_[layer];
  if (counts == nullptr) check(cudaMalloc(&counts, kBytes), "counts of a lookup's SMs");
  check(cudaMemsetAsync(counts, 0, kBytes, stream), "counts of a lookup's SMs");
  return counts;
}

}  // namespace eb::backend::cuda
