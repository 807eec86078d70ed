#include "harness/supervise/signals.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "harness/base/error.h"
#include "harness/supervise/reroll.h"

namespace eb::supervise {

namespace {

std::atomic<int> g_signal{0};
std::atomic<int> g_wake{-1};

extern "C" void on_signal(int number) {
  const int saved = errno;
  g_signal.store(number);
  const std::uint64_t one = 1;
  if (const int fd = g_wake.load(); fd >= 0) {
    [[maybe_unused]] const ssize_t put = ::write(fd, &one, sizeof one);
  }
  errno = saved;
}

}  // namespace

void install_signal_handlers() {
  if (g_wake.load() < 0) {
    const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) fail_errno(errno, "eventfd");
    g_wake.store(fd);
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  // A second signal ends the program at once; the ranks then end with it.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM}) {
    if (::sigaction(number, &action, nullptr) != 0) fail_errno(errno, "sigaction");
  }
  // A file-size limit then shows as an error of the write, which names the file.
  if (std::signal(SIGXFSZ, SIG_IGN) == SIG_ERR) fail_errno(errno, "signal(SIGXFSZ)");
}

int pending_signal() noexcept { return g_signal.load(); }
int signal_fd() noexcept { return g_wake.load(); }

void clear_signal() noexcept {
  g_signal.store(0);
  std::uint64_t count = 0;
  if (const int fd = g_wake.load(); fd >= 0) {
    [[maybe_unused]] const ssize_t got = ::read(fd, &count, sizeof count);
  }
}

void check_interrupted() {
  const int number = pending_signal();
  if (number != 0) fail(Exit::interrupted, "interrupted by {}", number == SIGINT ? "SIGINT" : "SIGTERM");
}

}  // namespace eb::supervise
