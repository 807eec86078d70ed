#include "harness/backend/cpu/channel.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "harness/backend/cpu/futex.h"
#include "harness/backend/cpu/op_text.h"
#include "harness/base/error.h"

namespace eb::backend::cpu {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kControlBytes = 64;
// A sleeper looks at `interrupted` this often even if the wake of interrupt() came just before it slept.
constexpr timespec kLookAgain{0, 100'000'000};

std::size_t control_bytes(std::size_t members) noexcept {
  return (members * kControlBytes + kPage - 1) / kPage * kPage;
}

// Counts a waiting stream for as long as it waits.
class WaitCount {
 public:
  explicit WaitCount(std::atomic<std::uint32_t>* count) noexcept : count_(count) {
    if (count_ != nullptr) count_->fetch_add(1, std::memory_order_relaxed);
  }
  ~WaitCount() {
    if (count_ != nullptr) count_->fetch_sub(1, std::memory_order_relaxed);
  }
  WaitCount(const WaitCount&) = delete;
  WaitCount& operator=(const WaitCount&) = delete;

 private:
  std::atomic<std::uint32_t>* count_;
};

}  // namespace

std::size_t channel_bytes(std::size_t members) noexcept {
  return members <= 1 ? 0 : control_bytes(members) + members * 2 * kSlotBytes;
}

// What a member says about its call; written before the round is published, so that a reader of the round sees it.
struct Message {
  std::uint64_t bytes = 0;
  std::int64_t stamp = 0;
  Op op;
  std::uint8_t shape = 0;
};

struct Channel::Control {
  std::atomic<std::uint32_t> published{0};  // rounds this member has written, modulo 2^32
  std::atomic<std::uint32_t> sleepers{0};   // threads that sleep on `published`
  Message message[2];                       // of the call whose first round is this slot's
};

struct Channel::Call {
  Shape shape{};
  Op op;
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;
  std::size_t bytes = 0;
  std::int64_t stamp = 0;
};

Channel::Channel(std::byte* base, std::size_t members, std::size_t index, const std::atomic<bool>& interrupted,
                 std::atomic<std::uint32_t>* waiting)
    : base_(base), members_(members), index_(index), interrupted_(interrupted), waiting_(waiting) {
  static_assert(sizeof(Control) <= kControlBytes);
}

Channel::Control& Channel::control(std::size_t member) const noexcept {
  return *reinterpret_cast<Control*>(base_ + member * kControlBytes);
}

std::byte* Channel::slot(std::size_t member, std::uint32_t round) const noexcept {
  return base_ + control_bytes(members_) + (member * 2 + round % 2) * kSlotBytes;
}

std::int64_t Channel::all_gather(Op op, const std::byte* send, std::byte* recv, std::size_t bytes, std::int64_t stamp) {
  return run({Shape::gather, op, send, recv, bytes, stamp});
}

std::int64_t Channel::all_to_all(Op op, const std::byte* send, std::byte* recv, std::size_t bytes, std::int64_t stamp) {
  return run({Shape::exchange, op, send, recv, bytes, stamp});
}

std::int64_t Channel::run(const Call& call) {
  if (broken_) fail(Exit::failure, "an earlier collective of this group failed");
  if (in_call_.exchange(true, std::memory_order_acquire)) {
    fail(Exit::failure, "two streams use one group at once; order its collectives by an event");
  }
  struct Leave {
    std::atomic<bool>& in_call;
    ~Leave() { in_call.store(false, std::memory_order_release); }
  } leave{in_call_};

  const bool gather = call.shape == Shape::gather;
  const auto sent_to = [&](std::size_t member) { return gather ? call.send : call.send + member * call.bytes; };
  if (call.bytes > 0 && call.recv + index_ * call.bytes != sent_to(index_)) {
    std::memcpy(call.recv + index_ * call.bytes, sent_to(index_), call.bytes);
  }
  if (members_ == 1) return call.stamp;

  // A slot holds one piece for everybody, or one for each member.
  const std::size_t pieces = gather ? 1 : members_;
  const std::size_t piece_bytes = kSlotBytes / pieces / 64 * 64;
  Control& own = control(index_);
  std::int64_t latest = call.stamp;
  std::size_t done = 0;
  bool first = true;
  do {  // an empty message still takes one round: a collective is also a meeting
    const std::size_t part = std::min(piece_bytes, call.bytes - done);
    const std::uint32_t round = own.published.load(std::memory_order_relaxed);
    if (first) own.message[round % 2] = {call.bytes, call.stamp, call.op, static_cast<std::uint8_t>(call.shape)};
    for (std::size_t piece = 0; piece < pieces && part > 0; ++piece) {
      if (!gather && piece == index_) continue;
      std::memcpy(slot(index_, round) + piece * piece_bytes, sent_to(piece) + done, part);
    }
    // Sequentially consistent against wait_for(): either the sleeper sees the round, or this sees the sleeper.
    own.published.store(round + 1, std::memory_order_seq_cst);
    if (own.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(own.published);

    for (std::size_t step = 1; step < members_; ++step) {  // each member starts at its neighbour
      const std::size_t peer = (index_ + step) % members_;
      wait_for(peer, round + 1);
      if (first) {
        check_peer(call, peer, round);
        latest = std::max(latest, control(peer).message[round % 2].stamp);
      }
      if (part == 0) continue;
      const std::byte* from = slot(peer, round) + (gather ? 0 : index_ * piece_bytes);
      std::memcpy(call.recv + peer * call.bytes + done, from, part);
    }
    first = false;
    done += part;
  } while (done < call.bytes);
  return latest;
}

void Channel::check_peer(const Call& call, std::size_t member, std::uint32_t round) {
  const Message& other = control(member).message[round % 2];
  if (other.bytes == call.bytes && other.op.kind == call.op.kind && other.op.layer == call.op.layer &&
      other.shape == static_cast<std::uint8_t>(call.shape)) {
    return;
  }
  broken_ = true;
  fail(Exit::failure, "member {} of the group is at another collective: {} of {} bytes, here {} of {} bytes", member,
       op_text(other.op), other.bytes, op_text(call.op), call.bytes);
}

void Channel::wait_for(std::size_t member, std::uint32_t published) {
  Control& peer = control(member);
  const auto there = [&](std::uint32_t value) { return static_cast<std::int32_t>(value - published) >= 0; };
  if (there(peer.published.load(std::memory_order_acquire))) return;
  const WaitCount counted(waiting_);
  peer.sleepers.fetch_add(1, std::memory_order_seq_cst);
  struct Leave {
    std::atomic<std::uint32_t>& sleepers;
    ~Leave() { sleepers.fetch_sub(1, std::memory_order_relaxed); }
  } leave{peer.sleepers};
  for (;;) {
    const std::uint32_t value = peer.published.load(std::memory_order_seq_cst);
    if (there(value)) return;
    if (interrupted_.load(std::memory_order_acquire)) {
      broken_ = true;  // the peers will be a round ahead
      throw Interrupted();
    }
    futex_wait(peer.published, value, &kLookAgain);
  }
}

void Channel::interrupt() noexcept {
  for (std::size_t member = 0; members_ > 1 && member < members_; ++member) {
    futex_wake_all(control(member).published);
  }
}

}  // namespace eb::backend::cpu

namespace eb::backend {

std::size_t arena_bytes(std::span<const GroupSpec> groups) {
  std::size_t bytes = 0;
  for (const GroupSpec& group : groups) bytes += cpu::channel_bytes(group.ranks.size());
  return bytes;
}

}  // namespace eb::backend
