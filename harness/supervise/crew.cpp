#include "harness/supervise/crew.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/supervise/signals.h"

namespace eb::supervise {

namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr int kPollMs = 100;  // a signal or a message ends the poll earlier
// After a failure the others may still be on their way to their own: this long without any progress ends the wait.
constexpr std::int64_t kGraceNs = 1'000 * kMs;
// ... and this long where all of them only wait for a peer.
constexpr std::int64_t kWaitingGraceNs = 200 * kMs;
constexpr std::int64_t kResidentEveryNs = 500 * kMs;
constexpr int kEndMs = 2'000;  // a process whose socket closed is about to end

}  // namespace

Crew::Crew(const plan::RunLayout& layout, std::int64_t timeout_ms, const std::vector<std::string>& arguments)
    : layout_(layout), timeout_ns_(timeout_ms * kMs) {
  const std::size_t count = layout.ranks.size();
  progress_fd_ = make_memfd("engram-bench progress", count * sizeof(control::RankProgress));
  progress_ = Mapping::shared(progress_fd_.get(), count * sizeof(control::RankProgress), "progress page");
  for (std::size_t i = 0; i < count; ++i) {
    new (progress_.data() + i * sizeof(control::RankProgress)) control::RankProgress();
    members_.emplace_back();
    members_.back().process = std::make_unique<RankProcess>(arguments);
    members_.back().progress_ns = now_ns();
  }
}

const control::RankProgress& Crew::progress(int rank) const noexcept {
  return reinterpret_cast<const control::RankProgress*>(progress_.data())[rank];
}

std::string Crew::label(int rank) const {
  const plan::RankPlace& place = layout_.ranks.at(static_cast<std::size_t>(rank));
  return fmt::format("rank {} (dp {}, tp {})", rank, place.replica, place.tp_rank);
}

void Crew::send(int rank, const control::ToRank& message, std::span<const int> fds) {
  Member& member = members_.at(static_cast<std::size_t>(rank));
  member.progress_ns = now_ns();
  try {
    member.process->channel().send(message, fds);
  } catch (const Error&) {
    // The rank is gone; the next collect() reads what it said last, and its end.
  }
}

void Crew::collect(std::span<const int> ranks, const std::string& doing, const Handle& handle) {
  std::set<int> pending(ranks.begin(), ranks.end());
  const std::int64_t start = now_ns();
  for (const int rank : ranks) members_.at(static_cast<std::size_t>(rank)).progress_ns = start;
  try {
    for (;;) {
      check_interrupted();
      // Every rank is looked at, also those that owe nothing now: a rank that died meanwhile is a failure.
      for (int rank = 0; rank < size(); ++rank) take_messages(rank, pending, doing, handle);
      if (pending.empty()) break;
      note_progress(pending);
      if (!failures_.empty()) {
        if (others_are_done(pending)) break;
      } else {
        check_hang(pending, doing);
      }
      wait_for_input(kPollMs);
    }
  } catch (...) {
    kill_all();
    throw;
  }
  if (!failures_.empty()) raise();
}

void Crew::wait_for_input(int ms) {
  std::vector<pollfd> items;
  for (const Member& member : members_) {
    if (!member.gone) items.push_back({member.process->channel().fd(), POLLIN, 0});
  }
  if (signal_fd() >= 0) items.push_back({signal_fd(), POLLIN, 0});
  if (::poll(items.data(), items.size(), ms) < 0 && errno != EINTR) fail_errno(errno, "supervisor: poll");
}

void Crew::take_messages(int rank, std::set<int>& pending, const std::string& doing, const Handle& handle) {
  Member& member = members_.at(static_cast<std::size_t>(rank));
  if (member.gone) return;
  control::Channel& channel = member.process->channel();
  const auto add_failure = [&](const std::string& stage, const std::string& text, int exit) {
    failures_.push_back({rank, fmt::format("{}: {}: {}", label(rank), stage, text), exit});
    member.failed = true;
    pending.erase(rank);
    if (first_failure_ns_ == 0) first_failure_ns_ = now_ns();
  };
  while (auto received = channel.try_receive_to_supervisor()) {
    member.progress_ns = now_ns();
    if (const auto* failure = std::get_if<control::Failure>(&received->message)) {
      add_failure(failure->stage, failure->text, failure->exit);
    } else if (handle(rank, *received)) {
      pending.erase(rank);
    }
  }
  if (!channel.closed()) return;
  member.gone = true;
  if (!member.process->wait(kEndMs)) member.process->kill();
  if (!member.failed) add_failure(doing, member.process->end_text(), static_cast<int>(Exit::failure));
}

void Crew::note_progress(const std::set<int>& pending) {
  const std::int64_t now = now_ns();
  const bool look_at_memory = now - resident_checked_ns_ > kResidentEveryNs;
  if (look_at_memory) resident_checked_ns_ = now;
  for (const int rank : pending) {
    Member& member = members_.at(static_cast<std::size_t>(rank));
    const control::RankProgress& page = progress(rank);
    const std::uint64_t seen = std::uint64_t{page.ticks.load()} << 32 | page.step.load();
    bool moved = seen != member.seen;
    member.seen = seen;
    if (look_at_memory) {
      const long resident = member.process->resident_kib();
      moved = moved || resident != member.resident;
      member.resident = resident;
    }
    if (moved) member.progress_ns = now;
  }
}

bool Crew::others_are_done(const std::set<int>& pending) const {
  const std::int64_t now = now_ns();
  std::int64_t last = first_failure_ns_;
  bool all_waiting = true;
  for (const int rank : pending) {
    if (progress(rank).waiting.load() > 0) continue;
    all_waiting = false;
    last = std::max(last, members_.at(static_cast<std::size_t>(rank)).progress_ns);
  }
  return now - last > (all_waiting ? kWaitingGraceNs : kGraceNs);
}

void Crew::check_hang(const std::set<int>& pending, const std::string& doing) {
  const std::int64_t now = now_ns();
  std::vector<int> hung;
  std::vector<int> waiting;
  std::int64_t last = 0;
  for (const int rank : pending) {
    const Member& member = members_.at(static_cast<std::size_t>(rank));
    last = std::max(last, member.progress_ns);
    if (progress(rank).waiting.load() > 0) {
      waiting.push_back(rank);
    } else if (now - member.progress_ns > timeout_ns_) {
      hung.push_back(rank);
    }
  }
  if (hung.empty() && (waiting.size() < pending.size() || now - last <= timeout_ns_)) return;
  const std::int64_t ms = timeout_ns_ / kMs;
  if (hung.empty()) {
    for (const int rank : waiting) {
      failures_.push_back(
          {rank,
           fmt::format("{}: {}: waits for a peer for more than {} ms, and so do all others", label(rank), doing, ms),
           1});
    }
    raise();
  }
  for (const int rank : hung) {
    std::string others;
    if (!waiting.empty()) others = fmt::format("; waiting for a peer: rank {}", fmt::join(waiting, ", "));
    failures_.push_back({rank,
                         fmt::format("{}: {}: no progress for {} ms (after {} steps){}", label(rank), doing, ms,
                                     progress(rank).step.load(), others),
                         1});
  }
  raise();
}

void Crew::raise() {
  kill_all();
  std::stable_sort(failures_.begin(), failures_.end(),
                   [](const FailureLine& a, const FailureLine& b) { return a.rank < b.rank; });
  int exit = failures_.front().exit;
  std::string text;
  for (const FailureLine& line : failures_) {
    if (line.exit == static_cast<int>(Exit::bad_data)) exit = line.exit;
    text += (text.empty() ? "" : "\n") + line.text;
  }
  throw Error(static_cast<Exit>(exit), text);
}

void Crew::wait_all(int ms) noexcept {
  const std::int64_t end = now_ns() + std::int64_t{ms} * kMs;
  for (Member& member : members_) {
    const auto left = static_cast<int>(std::max<std::int64_t>(0, (end - now_ns()) / kMs));
    if (!member.process->wait(left)) member.process->kill();
    member.gone = true;
  }
}

void Crew::kill_all() noexcept {
  for (Member& member : members_) {
    if (member.process) member.process->kill();
    member.gone = true;
  }
}

}  // namespace eb::supervise
