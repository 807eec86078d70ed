// Turns what happens in a run into its folder: events and samples after each block, result.json after each block with
// "complete": false, and once more, with the manifest, at the end. Not thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collectors/nvml.h"
#include "harness/base/error.h"
#include "harness/measure/experiment.h"
#include "harness/result/folder.h"
#include "harness/result/record.h"

namespace eb::result {

struct RunInput {
  const plan::Plan* plan = nullptr;
  std::vector<plan::RunLayout> layouts;      // of each arm
  std::vector<engram::Geometry> geometries;  // of each arm
  placement::Topology topology;
  std::string command_line;
  std::string binary_sha256;  // empty: unknown
  bool instrument = true;
  bool allow_degraded = false;  // pages that lie elsewhere than asked are a warning
  FloorKey floor_key;           // what an A/A floor must hold for
  AaPairs aa_pairs;             // A/A log ratios on record, by metric
  bool single_node = false;     // a rehearsal on one NUMA node
  Json cites = Json::array();   // read_cites()
  bool traced = false;          // run --trace
};

// When a run in progress renews its result.json, whose figures are derived anew each time: after a block, unless the
// last one took more than a twentieth of the time since, and after twice as many blocks at the latest. The samples and
// events of each block are on disk whatever it says.
class Renewal {
 public:
  // Counts a block that ended at `now_ns`.
  [[nodiscard]] bool due(std::int64_t now_ns) noexcept {
    return ++blocks_ >= 2 * blocks_then_ || now_ns - written_ns_ >= 19 * took_ns_;
  }
  void written(std::int64_t begin_ns, std::int64_t end_ns) noexcept {
    written_ns_ = end_ns;
    took_ns_ = end_ns - begin_ns;
    blocks_then_ = blocks_;
  }

 private:
  std::int64_t written_ns_ = 0;
  std::int64_t took_ns_ = 0;
  int blocks_then_ = 0;
  int blocks_ = 0;
};

class RunWriter final : public measure::Observer {
 public:
  // Writes plan.json, topology.xml and a first result.json, so that a folder that cannot be written is found before
  // anything is allocated. Errors: Error(failure).
  RunWriter(RunFolder& folder, const RunInput& input);

  // Errors of all: Error(failure) where a file cannot be written. reroll_ready and reroll_steady also where the pages
  // do not lie as the policy was asked to put them.
  void reroll_starting(const measure::RerollPlan& reroll) override;
  void reroll_ready(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) override;
  void slot_starting(const measure::SlotInfo& slot) override;
  void slot_done(const measure::SlotInfo& slot, const std::vector<supervise::SlotReport>& reports,
                 const std::vector<measure::StepValues>& values) override;
  void warm_up_done(const measure::WarmUp& warm_up) override;
  void block_done(const measure::RerollPlan& reroll, int block) override;
  bool pair_done(int pair) override;
  void reroll_steady(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) override;
  void reroll_done(const measure::RerollPlan& reroll, const supervise::StorageReport& storage) override;

  // The run went through: result.json says complete. An arm without samples is Error(failure).
  void finish();
  // The run ended early: the error goes into failures/ and result.json, which stays "complete": false. After a failed
  // check no sample is kept.
  void finish_failed(const std::string& text, Exit exit);

  [[nodiscard]] const Record& record() const noexcept { return record_; }
  // result.json as last written: sealed, or of some block of the run in progress.
  [[nodiscard]] const std::string& result_text() const noexcept { return result_text_; }

 private:
  void log(const std::string& text);
  void write_result(bool seal);
  void write_result_in_progress();
  void write_snapshots(RerollRecord& reroll);
  void require_binding(RerollRecord& reroll, const std::string& label);
  void require_placement(const RerollRecord& reroll, const std::string& label);
  void add_work(const measure::SlotInfo& slot, int rank, const Json& facts);
  void add_check(const measure::SlotInfo& slot, const std::vector<Json>& facts);
  void add_observed(const measure::SlotInfo& slot, const std::vector<Json>& facts,
                    const std::vector<measure::StepValues>& values);
  void append_samples(std::string& out, const measure::SlotInfo& slot, const std::vector<measure::StepValues>& values);
  void add_trace(const measure::SlotInfo& slot, const supervise::SlotReport& report);
  void flush_block(int reroll, int block);
  [[nodiscard]] RerollRecord& record_of(const measure::RerollPlan& reroll);

  RunFolder& folder_;
  Record record_;
  std::map<int, EventFile> event_files_;                        // by rank
  std::map<int, std::vector<rank::EventRecord>> block_events_;  // of the running block, by rank
  std::string block_samples_;
  std::vector<std::size_t> stored_steps_;  // of each arm, whose samples are in files
  std::map<int, Json> block_traces_;       // slots of the running block, by rank
  bool allow_degraded_ = false;
  std::string during_ = "start";
  std::string result_text_;
  Renewal renewal_;
  Observation observation_;
  collectors::PcieSampler pcie_;  // runs during warm-ups, whose times are no figures
};

}  // namespace eb::result
