// One end of the socket pair between the supervisor and a rank. A message is a 16-byte header (payload length u64, type
// u32, number of descriptors u32, host byte order: both ends are the same binary) and its payload; descriptors travel
// with the header's first byte. Not thread-safe: one thread an end.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "harness/base/unique_fd.h"
#include "harness/control/messages.h"

namespace eb::control {

inline constexpr std::uint64_t kMaxPayloadBytes = 1ULL << 30;
inline constexpr std::uint32_t kMaxDescriptors = 64;  // the kernel takes 253 in one message

template <typename Message>
struct Received {
  Message message;
  std::vector<UniqueFd> fds;
};

class Channel {
 public:
  Channel() = default;
  explicit Channel(UniqueFd socket) noexcept : socket_(std::move(socket)) {}
  // Both ends, close-on-exec.
  static std::pair<UniqueFd, UniqueFd> socket_pair();

  // Blocks until the whole message is in the socket. The descriptors stay the caller's. Errors: Error(failure) when the
  // other end is gone.
  void send(const ToRank& message, std::span<const int> fds = {});
  void send(const ToSupervisor& message, std::span<const int> fds = {});

  // The next message if it is complete; never blocks. Errors: Error(failure) for a malformed one.
  [[nodiscard]] std::optional<Received<ToSupervisor>> try_receive_to_supervisor();
  // Blocks; empty when the other end has closed.
  [[nodiscard]] std::optional<Received<ToRank>> receive_to_rank();
  [[nodiscard]] std::optional<Received<ToSupervisor>> receive_to_supervisor();

  // The other end has closed and everything it sent was read.
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  void close() noexcept { socket_.reset(); }

 private:
  struct Frame {
    std::uint32_t type = 0;
    std::string payload;
    std::vector<UniqueFd> fds;
  };
  void send_frame(std::uint32_t type, const std::string& payload, std::span<const int> fds);
  std::optional<Frame> next_frame();  // from what was read
  void read_available();
  std::optional<Frame> try_frame();
  std::optional<Frame> wait_frame();

  UniqueFd socket_;
  std::string buffer_;
  std::deque<UniqueFd> fds_;  // arrived, not yet handed out: in the order of the headers that carried them
  bool closed_ = false;
};

}  // namespace eb::control
