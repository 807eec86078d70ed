// In which order the arms of an experiment run. Pure: a function of the seed, so that a run can be repeated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::measure {

// Positions of one block, as arm indices. One arm: {0}. Two: ABBA or BAAB; of every two neighbouring blocks one is
// ABBA and one BAAB, which of them comes first is drawn from the seed. More: every arm once, in random order.
[[nodiscard]] std::vector<std::size_t> block_order(std::size_t arms, int reroll, int block, std::uint64_t seed);

// Arms that allocate anew: the order of the re-rolls of pair `pair`. Two arms: AB, BA, AB, ... (ABBA over pairs; which
// is first is drawn from the seed); more: random order.
[[nodiscard]] std::vector<std::size_t> pair_order(std::size_t arms, int pair, std::uint64_t seed);

// A draw of the standard normal distribution for re-roll `reroll`: the fake backend's noise.
[[nodiscard]] double normal_draw(std::uint64_t seed, int reroll) noexcept;

enum class SlotKind {
  check,    // correctness before any timing; not timed
  warm_up,  // windows until the step time is steady or the cap is hit
  burn_in,  // opens a block; not timed
  timed,
  observed,     // after all blocks, with collectors on: its times are kept apart
  calibration,  // windows of the bare row gather, once an arm at the end of a block: BW_effective
};
[[nodiscard]] const char* name(SlotKind kind) noexcept;

// One slot of the schedule of a re-roll.
struct SlotPlan {
  SlotKind kind{};
  std::size_t arm = 0;  // index into Plan::arms
  int block = -1;       // -1: before the blocks
  int position = -1;    // in the block
  std::int64_t steps = 0;
  bool check = false;
  bool check_hidden = false;
};

// Which arms a re-roll runs, and what they run before and in their blocks.
struct RerollPlan {
  int index = 0;  // re-roll number of the run
  int pair = 0;
  std::size_t allocated_for = 0;  // the arm whose storage the re-roll allocates
  // Arms whose tables are held at once, each in rank processes of its own (experiment.coresident), in the order in
  // which they are allocated; empty: one allocation, for allocated_for, on which all arms run.
  std::vector<std::size_t> coresident;
  std::vector<std::size_t> arms;      // judged arms in it
  std::vector<std::size_t> controls;  // controls that live in the same allocation: once at the end of each block
  std::vector<SlotPlan> checks;       // one an arm
  std::int64_t warm_up_steps = 0;     // cap, an arm
  std::vector<std::vector<SlotPlan>> blocks;
  std::vector<SlotPlan> observed;  // one a judged arm, after the blocks; empty without an observed pass
};

// All re-rolls of a plan, in order. Arms that share an allocation alternate inside one re-roll a pair; others get a
// re-roll each, or with experiment.coresident one a pair that holds the tables of all. A control that changes more than
// prefetch.* or workload.* gets its own re-roll after the arms of its pair. Errors: Error(usage) without an arm,
// without a block or a step, or with more slots than an event record can number (65536).
[[nodiscard]] std::vector<RerollPlan> make_schedule(const plan::Plan& plan);

}  // namespace eb::measure
