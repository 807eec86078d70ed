#include "harness/backend/cuda/launch_list.h"

#include <dlfcn.h>

#include <utility>

#include "harness/base/symbols.h"

namespace eb::backend::cuda {

namespace {

struct Api {
  decltype(&cuGraphGetNodes) nodes = nullptr;
  decltype(&cuGraphNodeGetType) type = nullptr;
  CUresult (*dependents)(CUgraphNode, CUgraphNode*, CUgraphEdgeData*, std::size_t*) = nullptr;
  CUresult (*dependencies)(CUgraphNode, CUgraphNode*, CUgraphEdgeData*, std::size_t*) = nullptr;
  decltype(&cuGraphKernelNodeGetParams) kernel = nullptr;
  decltype(&cuGraphKernelNodeGetAttribute) attribute = nullptr;
  decltype(&cuGraphMemsetNodeGetParams) fill = nullptr;
  decltype(&cuKernelGetFunction) function_of = nullptr;
  decltype(&cuLaunchKernelEx) launch = nullptr;
  decltype(&cuMemsetD8Async) fill_8 = nullptr;
  decltype(&cuMemsetD32Async) fill_32 = nullptr;
  bool complete = true;
};

template <typename Function>
void resolve(void* library, const char* name, Function& function, bool& complete) {
  complete = find_symbol(library, name, function) && complete;
}

const Api& api() {
  static const Api loaded = [] {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    Api found;
    resolve(library, "cuGraphGetNodes", found.nodes, found.complete);
    resolve(library, "cuGraphNodeGetType", found.type, found.complete);
    resolve(library, "cuGraphNodeGetDependentNodes_v2", found.dependents, found.complete);
    resolve(library, "cuGraphNodeGetDependencies_v2", found.dependencies, found.complete);
    resolve(library, "cuGraphKernelNodeGetParams_v2", found.kernel, found.complete);
    resolve(library, "cuGraphKernelNodeGetAttribute", found.attribute, found.complete);
    resolve(library, "cuGraphMemsetNodeGetParams", found.fill, found.complete);
    resolve(library, "cuKernelGetFunction", found.function_of, found.complete);
    resolve(library, "cuLaunchKernelEx", found.launch, found.complete);
    resolve(library, "cuMemsetD8Async", found.fill_8, found.complete);
    resolve(library, "cuMemsetD32Async", found.fill_32, found.complete);
    return found;
  }();
  return loaded;
}

// The nodes of a chain in their order; empty: it is none.
std::vector<CUgraphNode> chain_of(cudaGraph_t graph) {
  std::size_t count = 0;
  if (api().nodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return {};
  std::vector<CUgraphNode> nodes(count);
  if (api().nodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return {};
  CUgraphNode next = nullptr;
  for (CUgraphNode node : nodes) {
    std::size_t before = 0;
    if (api().dependencies(node, nullptr, nullptr, &before) != CUDA_SUCCESS || before > 1) return {};
    if (before == 0 && next != nullptr) return {};
    if (before == 0) next = node;
  }
  std::vector<CUgraphNode> chain;
  while (next != nullptr) {
    chain.push_back(next);
    std::size_t after = 0;
    if (api().dependents(next, nullptr, nullptr, &after) != CUDA_SUCCESS || after > 1) return {};
    CUgraphEdgeData edge{};
    CUgraphNode following = nullptr;
    if (after == 1) {
      if (api().dependents(next, &following, &edge, &after) != CUDA_SUCCESS) return {};
      // A plain edge: what one launch behind the other on a stream means. Others overlap the two.
      if (edge.type != 0 || edge.from_port != 0 || edge.to_port != 0) return {};
    }
    next = following;
  }
  return chain.size() == nodes.size() ? chain : std::vector<CUgraphNode>{};
}

}  // namespace

LaunchList::LaunchList(LaunchList&& other) noexcept
    : graph_(std::exchange(other.graph_, nullptr)), steps_(std::move(other.steps_)) {}

LaunchList& LaunchList::operator=(LaunchList&& other) noexcept {
  std::swap(graph_, other.graph_);
  std::swap(steps_, other.steps_);
  return *this;
}

LaunchList::~LaunchList() {
  if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
}

std::optional<LaunchList> LaunchList::from(cudaGraph_t graph) {
  LaunchList list;
  list.graph_ = graph;
  if (!api().complete) return std::nullopt;
  const std::vector<CUgraphNode> chain = chain_of(graph);
  for (CUgraphNode node : chain) {
    CUgraphNodeType type{};
    if (api().type(node, &type) != CUDA_SUCCESS) return std::nullopt;
    const bool added = type == CU_GRAPH_NODE_TYPE_KERNEL   ? list.add_kernel(node)
                       : type == CU_GRAPH_NODE_TYPE_MEMSET ? list.add_fill(node)
                                                           : false;
    if (!added) return std::nullopt;
  }
  if (chain.empty()) return std::nullopt;
  return list;
}

bool LaunchList::add_kernel(CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS params{};
  if (api().kernel(node, &params) != CUDA_SUCCESS) return false;
  Step step;
  step.function = params.func;
  if (step.function == nullptr && api().function_of(&step.function, params.kern) != CUDA_SUCCESS) return false;
  step.config.gridDimX = params.gridDimX;
  step.config.gridDimY = params.gridDimY;
  step.config.gridDimZ = params.gridDimZ;
  step.config.blockDimX = params.blockDimX;
  step.config.blockDimY = params.blockDimY;
  step.config.blockDimZ = params.blockDimZ;
  step.config.sharedMemBytes = params.sharedMemBytes;
  step.arguments = params.kernelParams;
  step.extra = params.extra;
  CUlaunchAttributeValue value{};
  const auto keep = [&](CUlaunchAttributeID id) {
    CUlaunchAttribute attribute{};
    attribute.id = id;
    attribute.value = value;
    step.attributes.push_back(attribute);
  };
  if (api().attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value) != CUDA_SUCCESS) return false;
  if (value.clusterDim.x > 0) keep(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  if (api().attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, &value) != CUDA_SUCCESS) {
    return false;
  }
  if (value.clusterSchedulingPolicyPreference != CU_CLUSTER_SCHEDULING_POLICY_DEFAULT) {
    keep(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  }
  if (api().attribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value) != CUDA_SUCCESS) return false;
  if (value.cooperative != 0) keep(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  steps_.push_back(std::move(step));
  return true;
}

bool LaunchList::add_fill(CUgraphNode node) {
  Step step;
  if (api().fill(node, &step.fill) != CUDA_SUCCESS) return false;
  const bool plain = step.fill.height == 1 && (step.fill.elementSize == 1 || step.fill.elementSize == 4);
  if (plain) steps_.push_back(std::move(step));
  return plain;
}

CUresult LaunchList::launch(cudaStream_t stream) const {
  for (const Step& step : steps_) {
    CUresult result = CUDA_SUCCESS;
    if (step.function != nullptr) {
      CUlaunchConfig config = step.config;
      config.hStream = stream;
      config.attrs = const_cast<CUlaunchAttribute*>(step.attributes.data());
      config.numAttrs = static_cast<unsigned>(step.attributes.size());
      result = api().launch(&config, step.function, step.arguments, step.extra);
    } else if (step.fill.elementSize == 1) {
      result = api().fill_8(step.fill.dst, static_cast<unsigned char>(step.fill.value), step.fill.width, stream);
    } else {
      result = api().fill_32(step.fill.dst, step.fill.value, step.fill.width, stream);
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace eb::backend::cuda
