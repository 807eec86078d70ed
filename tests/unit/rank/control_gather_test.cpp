#include "harness/rank/step/control_gather.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/unit/rank/step_fixture.h"
#include "tests/unit/rank/unused_backend.h"

namespace eb::rank {
namespace {

class HostBuffer : public backend::Buffer {
 public:
  explicit HostBuffer(std::size_t bytes) : bytes_(bytes) {}
  std::byte* data() const noexcept override { return bytes_.data(); }
  std::size_t size() const noexcept override { return bytes_.size(); }

 private:
  mutable std::vector<std::byte> bytes_;
};

// Notes what is looked up with which grid, and runs none of it.
class NotesLookups : public test::UnusedBackend {
 public:
  struct Lookup {
    std::int64_t tokens, columns, rows, cap;
    bool operator==(const Lookup&) const = default;
  };

  explicit NotesLookups(int units) { info_.units = units; }
  std::unique_ptr<backend::Buffer> allocate(std::size_t bytes, backend::MemoryKind, const char*) override {
    return std::make_unique<HostBuffer>(bytes);
  }
  void fill(backend::StreamId, backend::Op, std::byte*, std::uint8_t, std::size_t) override {}
  void copy(backend::StreamId, backend::Op, std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void synchronize() override {}
  backend::EventId new_event() override { return events_++; }
  void record(backend::StreamId, backend::EventId) override {}
  std::int64_t lookup(backend::StreamId, backend::Op, const kernels::LookupArgs& args, std::int64_t cap) override {
    seen.push_back({args.tokens, args.columns, args.table.rows, cap});
    return 1;
  }

  std::vector<Lookup> seen;

 private:
  backend::EventId events_ = 0;
};

// What the control of rank 0 reads in a step of `scenario`.
NotesLookups::Lookup control_of(const plan::Scenario& scenario) {
  const engram::Geometry geometry = engram::make_geometry(scenario.model.base, scenario.model.table_scale);
  const plan::RunLayout layout = plan::make_layout(scenario, geometry);
  const StepShape shape = make_shape(scenario, layout, geometry, 0);
  const StepTokens tokens = step_tokens(shape, scenario.workload, 0);
  NotesLookups backend(7);
  EventLog log(backend, true);
  const ControlGather control(backend, shape, geometry, tokens.own, 1, 0);
  log.begin_step(0);
  control.enqueue(0, log, 0, tokens.own);
  EXPECT_EQ(backend.seen.size(), 1u);
  return backend.seen.at(0);
}

TEST(ControlGather, IsTheSameInEveryArm) {
  plan::Scenario shared = test::tiny(1, 2, plan::TableMode::shared);
  shared.workload.batches = {test::batch({32}, 0, 0), test::batch({8}, 0, 1)};
  const NotesLookups::Lookup baseline = control_of(shared);
  EXPECT_GT(baseline.tokens * baseline.columns, 0);
  EXPECT_EQ(baseline.cap, 7) << "the control takes every unit of the device, whatever prefetch.grid_cap says";
  plan::Scenario capped = shared;
  capped.prefetch.grid_cap.kind = plan::GridCap::Kind::programs;
  capped.prefetch.grid_cap.value = 1;
  EXPECT_EQ(control_of(capped), baseline);
  // Uneven replicas: dp_sharded pads its lookups and splits their heads, and the control does neither.
  plan::Scenario sharded = test::tiny(1, 2, plan::TableMode::dp_sharded);
  sharded.workload.batches = {test::batch({8}, 0, 0), test::batch({32}, 0, 1)};
  plan::Scenario same_tokens = shared;
  same_tokens.workload.batches = sharded.workload.batches;
  const NotesLookups::Lookup alone = control_of(same_tokens);
  const NotesLookups::Lookup split = control_of(sharded);
  EXPECT_EQ(split.tokens, alone.tokens);
  EXPECT_EQ(split.columns, alone.columns);
  EXPECT_EQ(split.cap, alone.cap);
}

}  // namespace
}  // namespace eb::rank
