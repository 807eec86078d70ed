// All rank processes of a re-roll: sends to them, gathers their answers, and says who failed or hangs. One thread, the
// main one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "harness/base/mapping.h"
#include "harness/base/unique_fd.h"
#include "harness/control/channel.h"
#include "harness/control/progress.h"
#include "harness/plan/layout.h"
#include "harness/supervise/rank_process.h"

namespace eb::supervise {

class Crew {
 public:
  // Starts a process a rank with the command-line words `arguments` (the hidden subcommand). Errors: Error(failure).
  Crew(const plan::RunLayout& layout, std::int64_t timeout_ms, const std::vector<std::string>& arguments);

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int progress_fd() const noexcept { return progress_fd_.get(); }
  [[nodiscard]] const control::RankProgress& progress(int rank) const noexcept;

  // A rank that is gone is not an error here: collect() names it.
  void send(int rank, const control::ToRank& message, std::span<const int> fds = {});

  // Handles messages until every rank of `ranks` has answered. `handle` returns true where a message is the answer.
  // `doing` names the stage in errors. Errors: Error with one line a rank that failed, died, or hangs (the exit code is
  // bad_data if any rank says so, else the first failure's); Error(interrupted). After an error all ranks are ended.
  using Handle = std::function<bool(int rank, control::Received<control::ToSupervisor>& received)>;
  void collect(std::span<const int> ranks, const std::string& doing, const Handle& handle);

  // Waits for the processes to end by themselves; kills what has not after `ms`.
  void wait_all(int ms) noexcept;
  void kill_all() noexcept;

  // "rank 3 (dp 1, tp 1)".
  [[nodiscard]] std::string label(int rank) const;

 private:
  struct Member {
    std::unique_ptr<RankProcess> process;
    bool gone = false;       // its end was seen
    bool failed = false;     // a failure of it is in failures_
    std::uint64_t seen = 0;  // ticks and steps
    long resident = 0;
    std::int64_t progress_ns = 0;  // when it was last seen to move
  };
  struct FailureLine {
    int rank = 0;
    std::string text;
    int exit = 1;
  };

  void wait_for_input(int ms);
  void take_messages(int rank, std::set<int>& pending, const std::string& doing, const Handle& handle);
  void note_progress(const std::set<int>& pending);
  // After a failure: nobody who could still say why he fails moves any more.
  [[nodiscard]] bool others_are_done(const std::set<int>& pending) const;
  void check_hang(const std::set<int>& pending, const std::string& doing);
  [[noreturn]] void raise();

  const plan::RunLayout& layout_;
  std::int64_t timeout_ns_;
  UniqueFd progress_fd_;
  Mapping progress_;
  std::vector<Member> members_;
  std::vector<FailureLine> failures_;
  std::int64_t first_failure_ns_ = 0;
  std::int64_t resident_checked_ns_ = 0;
};

}  // namespace eb::supervise
