#include "harness/rank/backend_factory.h"

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

}  // namespace

std::string missing_backend(plan::BackendKind kind) {
  if (kind != plan::BackendKind::cuda) return {};
  return "device.backend cuda: this build of engram-bench has no CUDA backend; use cpu or auto";
}

std::unique_ptr<backend::Backend> make_backend(const RankContext& context) {
  switch (context.scenario.device.backend) {
    case plan::BackendKind::auto_:
    case plan::BackendKind::cpu:
      return make_cpu(context);
    case plan::BackendKind::fake:
      return make_fake(context);
    case plan::BackendKind::cuda:
      break;
  }
  throw Error(Exit::skipped, missing_backend(context.scenario.device.backend));
}

}  // namespace eb::rank
