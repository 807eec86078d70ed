#include "harness/control/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "harness/base/error.h"
#include "harness/control/encoding.h"

namespace eb::control {

namespace {

struct Header {
  std::uint64_t payload_bytes = 0;
  std::uint32_t type = 0;
  std::uint32_t descriptors = 0;
};
static_assert(sizeof(Header) == 16);

}  // namespace

std::pair<UniqueFd, UniqueFd> Channel::socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail_errno(errno, "control: socketpair");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void Channel::send_frame(std::uint32_t type, const std::string& payload, std::span<const int> fds) {
  if (fds.size() > kMaxDescriptors || payload.size() > kMaxPayloadBytes) {
    fail(Exit::failure, "control: a message of {} bytes and {} descriptors is too large", payload.size(), fds.size());
  }
  const Header header{payload.size(), type, static_cast<std::uint32_t>(fds.size())};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  bytes += payload;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> ancillary{};
  for (std::size_t done = 0; done < bytes.size();) {
    iovec piece{bytes.data() + done, bytes.size() - done};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (done == 0 && !fds.empty()) {
      message.msg_control = ancillary.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    const ssize_t put = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno(errno, "control: send");
    done += static_cast<std::size_t>(put);
  }
}

// Takes everything the socket holds now. Descriptors are queued: the stream keeps their order, and a header says how
// many are its own.
void Channel::read_available() {
  std::array<char, 1 << 16> piece;
  while (!closed_) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> ancillary{};
    iovec target{piece.data(), piece.size()};
    msghdr message{};
    message.msg_iov = &target;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.data();
    message.msg_controllen = ancillary.size();
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0 && errno != ECONNRESET) fail_errno(errno, "control: receive");
    if (got <= 0) {
      closed_ = true;
      return;
    }
    for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr; item = CMSG_NXTHDR(&message, item)) {
      if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof fd);
        fds_.emplace_back(fd);
      }
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      fail(Exit::failure, "control: descriptors were lost on receive: raise the limit of open files (ulimit -n)");
    }
    buffer_.append(piece.data(), static_cast<std::size_t>(got));
  }
}

std::optional<Channel::Frame> Channel::next_frame() {
  Header header;
  if (buffer_.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, buffer_.data(), sizeof header);
  if (header.payload_bytes > kMaxPayloadBytes || header.descriptors > kMaxDescriptors) {
    fail(Exit::failure, "control: a header of {} bytes and {} descriptors is malformed", header.payload_bytes,
         header.descriptors);
  }
  if (buffer_.size() - sizeof header < header.payload_bytes) return std::nullopt;
  if (fds_.size() < header.descriptors) fail(Exit::failure, "control: a message came without its descriptors");
  Frame frame;
  frame.type = header.type;
  frame.payload = buffer_.substr(sizeof header, header.payload_bytes);
  buffer_.erase(0, sizeof header + header.payload_bytes);
  for (std::uint32_t i = 0; i < header.descriptors; ++i) {
    frame.fds.push_back(std::move(fds_.front()));
    fds_.pop_front();
  }
  return frame;
}

std::optional<Channel::Frame> Channel::try_frame() {
  if (auto frame = next_frame()) return frame;
  read_available();
  return next_frame();
}

std::optional<Channel::Frame> Channel::wait_frame() {
  for (;;) {
    if (auto frame = try_frame()) return frame;
    if (closed_) return std::nullopt;
    pollfd item{socket_.get(), POLLIN, 0};
    if (::poll(&item, 1, -1) < 0 && errno != EINTR) fail_errno(errno, "control: poll");
  }
}

void Channel::send(const ToRank& message, std::span<const int> fds) {
  const Encoded encoded = encode(message);
  send_frame(encoded.type, encoded.payload, fds);
}

void Channel::send(const ToSupervisor& message, std::span<const int> fds) {
  const Encoded encoded = encode(message);
  send_frame(encoded.type, encoded.payload, fds);
}

namespace {
template <typename Message, typename Frame, typename Decode>
std::optional<Received<Message>> decoded(std::optional<Frame> frame, Decode decode) {
  if (!frame) return std::nullopt;
  return Received<Message>{decode(frame->type, frame->payload), std::move(frame->fds)};
}
}  // namespace

std::optional<Received<ToSupervisor>> Channel::try_receive_to_supervisor() {
  return decoded<ToSupervisor>(try_frame(), decode_to_supervisor);
}
std::optional<Received<ToRank>> Channel::receive_to_rank() { return decoded<ToRank>(wait_frame(), decode_to_rank); }
std::optional<Received<ToSupervisor>> Channel::receive_to_supervisor() {
  return decoded<ToSupervisor>(wait_frame(), decode_to_supervisor);
}

}  // namespace eb::control
