#include "harness/rank/backend_factory.h"

#include "harness/backend/cuda/cuda.h"
#include "harness/backend/fake/fake.h"
#include "harness/base/error.h"

namespace eb::rank {

namespace {

std::unique_ptr<backend::Backend> make_cpu(const RankContext& context) {
  backend::CpuOptions options;
  options.workers = context.scenario.device.cpu_workers;
  options.numa_node = context.numa_node;
  options.arena = context.arena;
  options.groups = run_groups(context.layout);
  options.rank = context.rank;
  options.waiting = &context.progress->waiting;
  return backend::make_cpu_backend(options);
}

std::unique_ptr<backend::Backend> make_fake(const RankContext& context) {
  backend::fake::FakeOptions options;
  options.units = context.scenario.device.cpu_workers;
  options.numa_node = context.numa_node;
  options.arena = context.arena;
  options.groups = run_groups(context.layout);
  options.rank = context.rank;
  options.waiting = &context.progress->waiting;
  for (const auto& [name, us] : context.scenario.device.fake_durations_us) {
    options.script.duration_ns[name] = static_cast<std::int64_t>(us * 1000);
  }
  return backend::fake::make_fake_backend(options);
}

std::unique_ptr<backend::Backend> make_cuda(const RankContext& context) {
  backend::cuda::Options options;
  const int devices = backend::cuda::probe().devices;
  options.device = context.device;  // as the supervisor dealt them out
  if (context.device < 0) options.device = devices > 0 ? cuda_device(context.scenario, context.rank, devices) : 0;
  options.arena = context.arena;
  options.groups = run_groups(context.layout);
  options.rank = context.rank;
  options.waiting = &context.progress->waiting;
  return backend::cuda::make_backend(options);
}

}  // namespace

int cuda_device(const plan::Scenario& scenario, int rank, int devices) {
  if (scenario.device.rank_devices.empty()) return rank % devices;
  const int device = scenario.device.rank_devices.at(static_cast<std::size_t>(rank));
  if (device >= devices) {
    fail(Exit::skipped, "device.rank_map: rank {} wants device {}; this machine has {} (counted from 0)", rank, device,
         devices);
  }
  return device;
}

std::vector<int> cuda_device_nodes() { return backend::cuda::probe().numa_nodes; }

std::vector<std::int64_t> cuda_device_memory() { return backend::cuda::probe().memory_bytes; }

plan::BackendKind resolve_backend(plan::BackendKind kind) {
  if (kind != plan::BackendKind::auto_) return kind;
  return backend::cuda::probe().devices > 0 ? plan::BackendKind::cuda : plan::BackendKind::cpu;
}

std::string missing_backend(plan::BackendKind kind) {
  if (kind != plan::BackendKind::cuda) return {};
  const backend::cuda::Probe probe = backend::cuda::probe();
  return probe.devices > 0 ? "" : fmt::format("device.backend cuda: {}; use cpu or auto", probe.reason);
}

std::unique_ptr<backend::Backend> make_backend(const RankContext& context) {
  switch (resolve_backend(context.scenario.device.backend)) {
    case plan::BackendKind::fake:
      return make_fake(context);
    case plan::BackendKind::cuda:
      return make_cuda(context);
    default:
      return make_cpu(context);
  }
}

}  // namespace eb::rank
