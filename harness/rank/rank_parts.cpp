#include "harness/rank/rank_parts.h"

#include "harness/rank/backend_factory.h"
#include "harness/rank/table_snapshot.h"

namespace eb::rank {

namespace {

class Steps : public SlotRunner {
 public:
  Steps(const RankContext& context, backend::Backend& backend, const TableStorage& storage,
        const RowReference& reference)
      : runner_(input(context, backend, storage, reference)) {}
  SlotResult run(const control::RunSlot& slot, const plan::Scenario& arm) override { return runner_.run(slot, arm); }

 private:
  static StepRunnerInput input(const RankContext& context, backend::Backend& backend, const TableStorage& storage,
                               const RowReference& reference) {
    StepRunnerInput input;
    input.scenario = &context.scenario;
    input.layout = &context.layout;
    input.geometry = &context.geometry;
    input.rank = context.rank;
    input.backend = &backend;
    input.tables = storage.views();
    if (in_host_memory(storage.sharing())) input.host_tables = storage.mapping().data();
    input.reference = &reference;
    input.progress = context.progress;
    input.instrument = context.instrument;
    return input;
  }

  StepRunner runner_;
};

}  // namespace

RankParts real_parts() {
  RankParts parts;
  parts.make_backend = make_backend;
  parts.make_runner = [](const RankContext& context, backend::Backend& backend, const TableStorage& storage,
                         const RowReference& reference) -> std::unique_ptr<SlotRunner> {
    return std::make_unique<Steps>(context, backend, storage, reference);
  };
  parts.take_snapshot = table_snapshot;
  return parts;
}

}  // namespace eb::rank
