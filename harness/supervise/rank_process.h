// One rank's process as its parent sees it. Owned: killed and waited for on destruction.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "harness/control/channel.h"

namespace eb::supervise {

class RankProcess {
 public:
  // Starts this program again with `arguments` and "--fd 3", descriptor 3 being the rank's end of the channel. The
  // child dies with this process (PDEATHSIG), ignores SIGINT and SIGTERM (the supervisor ends it), reads nothing from
  // stdin and has stderr as stdout. Call from the main thread: the kernel ties PDEATHSIG to the thread. Errors:
  // Error(failure).
  explicit RankProcess(const std::vector<std::string>& arguments);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  [[nodiscard]] control::Channel& channel() noexcept { return channel_; }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  // Resident memory of the process, hugetlb pages included: a sign of progress while it faults a large mapping. -1:
  // gone.
  [[nodiscard]] long resident_kib() const;
  // Waits up to `ms` for the end; true when it has ended.
  bool wait(int ms) noexcept;
  void kill() noexcept;  // SIGKILL, then waits
  // "killed by signal 9 (Killed)", "ended with exit code 1"; after wait() said true.
  [[nodiscard]] std::string end_text() const;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  control::Channel channel_;
};

}  // namespace eb::supervise
