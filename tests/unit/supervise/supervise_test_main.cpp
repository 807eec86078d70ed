// A rank of this program has a stand-in for the pipeline, which checks what the storage life cycle promises: every row
// of the mapped tables is the reference's.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/rank/backend_factory.h"
#include "harness/rank/table_snapshot.h"
#include "tests/rank_program.h"

namespace eb {
namespace {

class RowChecker : public rank::SlotRunner {
 public:
  RowChecker(const rank::RankContext& context, const rank::TableStorage& storage, const rank::RowReference& reference)
      : context_(context), tables_(storage.views()), reference_(reference) {}

  rank::SlotResult run(const control::RunSlot& slot, const plan::Scenario& arm) override {
    if (arm.name != context_.scenario.name) fail(Exit::failure, "another arm");
    fault(slot);
    rank::SlotResult result;
    std::int64_t rows = 0;
    for (std::size_t l = 0; l < tables_.size(); ++l) rows += check(l);
    for (std::int64_t i = 0; i < slot.steps; ++i) {
      rank::EventRecord event;
      event.step = static_cast<std::uint32_t>(i);
      event.slot = slot.slot;
      event.time_ns = 1000 * context_.rank + i;
      result.events.push_back(event);
      context_.progress->step.store(static_cast<std::uint32_t>(i + 1));
      context_.progress->ticks.fetch_add(1);
    }
    result.facts_json = fmt::format("{{\"rows\":{}}}", rows);
    return result;
  }

 private:
  // in_step faults, as the step pipeline plants them.
  void fault(const control::RunSlot&) {
    const plan::Fault& fault = context_.scenario.fault;
    if (fault.kind == "none" || fault.stage != "in_step") return;
    if (fault.rank != context_.rank) {
      if (fault.rank < 0) context_.progress->step.store(1);
      context_.progress->waiting.fetch_add(1);
      for (;;) ::pause();  // for the peer that does not come
    }
    if (fault.kind == "kill") ::raise(SIGKILL);
    if (fault.kind == "fail") fail(Exit::bad_data, "layer 0 token 3 column 2 differs");
    for (;;) ::pause();
  }

  std::int64_t check(std::size_t layer) const {
    const kernels::TableView& view = tables_[layer];
    const auto weight_bytes = static_cast<std::size_t>(context_.geometry.row_weight_bytes());
    const auto scale_bytes = static_cast<std::size_t>(context_.geometry.row_scale_bytes());
    std::vector<std::uint8_t> weights(weight_bytes), scales(scale_bytes);
    for (std::int64_t r = 0; r < view.rows; ++r) {
      reference_.row(layer, view.first_row + r, weights, scales);
      if (std::memcmp(view.weights + r * view.weight_stride, weights.data(), weight_bytes) != 0 ||
          std::memcmp(view.scales + r * view.scale_stride, scales.data(), scale_bytes) != 0) {
        fail(Exit::bad_data, "table {} row {} differs", layer, view.first_row + r);
      }
    }
    return view.rows;
  }

  const rank::RankContext& context_;
  std::vector<kernels::TableView> tables_;
  const rank::RowReference& reference_;
};

rank::RankParts row_checking_parts() {
  rank::RankParts parts;
  parts.make_backend = rank::make_backend;
  parts.make_runner = [](const rank::RankContext& context, backend::Backend&, const rank::TableStorage& storage,
                         const rank::RowReference& reference) -> std::unique_ptr<rank::SlotRunner> {
    return std::make_unique<RowChecker>(context, storage, reference);
  };
  parts.take_snapshot = rank::table_snapshot;
  return parts;
}

}  // namespace
}  // namespace eb

int main(int argc, char** argv) { return eb::test_or_rank_main(argc, argv, eb::row_checking_parts); }
