#include "harness/measure/experiment.h"

namespace eb::measure {

namespace {

class RerollExecutor final : public Executor {
 public:
  RerollExecutor(const plan::Scenario& scenario, const plan::RunLayout& layout, const supervise::Options& options)
      : reroll_(scenario, layout, options) {}
  std::vector<supervise::SlotReport> run_slot(const control::RunSlot& slot) override { return reroll_.run_slot(slot); }
  void snapshot(const std::string& label) override { reroll_.snapshot(label); }
  void tear_down() override { reroll_.tear_down(); }
  const supervise::StorageReport& storage() const noexcept override { return reroll_.storage(); }

 private:
  supervise::Reroll reroll_;
};

}  // namespace

ExecutorFactory reroll_factory(const supervise::Options& options) {
  return [options](const plan::Scenario& scenario, const plan::RunLayout& layout) -> std::unique_ptr<Executor> {
    return std::make_unique<RerollExecutor>(scenario, layout, options);
  };
}

}  // namespace eb::measure
