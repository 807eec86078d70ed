#include "harness/supervise/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "harness/base/error.h"
#include "harness/base/os.h"

extern char** environ;

namespace eb::supervise {

namespace {

constexpr int kChannelFd = 3;

// The environment of a rank: the parent's, with OpenBLAS held to one thread before it starts its own.
std::vector<std::string> rank_environment() {
  std::vector<std::string> list;
  for (char** item = environ; *item != nullptr; ++item) {
    if (std::strncmp(*item, "OPENBLAS_NUM_THREADS=", 21) != 0) list.emplace_back(*item);
  }
  list.emplace_back("OPENBLAS_NUM_THREADS=1");
  return list;
}

std::vector<char*> pointers(std::vector<std::string>& list) {
  std::vector<char*> out;
  for (std::string& item : list) out.push_back(item.data());
  out.push_back(nullptr);
  return out;
}

// In the child, between fork and exec: async-signal-safe calls alone. Returns only on failure.
void become_rank(pid_t parent, int channel, int null, char* const* arguments, char* const* environment) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &ignore, nullptr);
  ::sigaction(SIGTERM, &ignore, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(null, STDIN_FILENO) < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return;
  if (channel == kChannelFd) {
    if (::fcntl(channel, F_SETFD, 0) != 0) return;
  } else if (::dup2(channel, kChannelFd) < 0) {
    return;
  }
  ::execve("/proc/self/exe", arguments, environment);
}

}  // namespace

RankProcess::RankProcess(const std::vector<std::string>& arguments) {
  auto [own, rank_end] = control::Channel::socket_pair();
  // Above 3, so that no descriptor the child still needs is overwritten by its channel.
  const UniqueFd end(::fcntl(rank_end.get(), F_DUPFD_CLOEXEC, kChannelFd + 1));
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!end || !null) fail_errno(errno, "start of a rank");
  std::vector<std::string> words = {"engram-bench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  words.insert(words.end(), {"--fd", std::to_string(kChannelFd)});
  std::vector<std::string> variables = rank_environment();
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(variables);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail_errno(errno, "start of a rank: fork");
  if (pid_ == 0) {
    become_rank(parent, end.get(), null.get(), argv.data(), envp.data());
    ::_exit(127);
  }
  channel_ = control::Channel(std::move(own));
}

RankProcess::~RankProcess() { kill(); }

long RankProcess::resident_kib() const {
  const std::string path = fmt::format("/proc/{}/status", pid_);
  long resident = -1;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    char line[256];
    // VmRSS leaves hugetlb pages out.
    while (std::fgets(line, sizeof line, file) != nullptr) {
      long kib = 0;
      if (std::sscanf(line, "VmRSS: %ld", &kib) == 1 || std::sscanf(line, "HugetlbPages: %ld", &kib) == 1) {
        resident = std::max(resident, 0L) + kib;
      }
    }
    std::fclose(file);
  }
  return resident;
}

bool RankProcess::wait(int ms) noexcept {
  const std::int64_t end_ns = now_ns() + std::int64_t{ms} * 1'000'000;
  while (!ended_) {
    const pid_t got = ::waitpid(pid_, &status_, WNOHANG);
    if (got == pid_ || (got < 0 && errno == ECHILD)) {
      ended_ = true;
    } else if (now_ns() >= end_ns) {
      return false;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

void RankProcess::kill() noexcept {
  if (pid_ < 0 || ended_) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  ended_ = true;
}

std::string RankProcess::end_text() const {
  if (WIFSIGNALED(status_)) {
    const int number = WTERMSIG(status_);
    const char* hint = "";
    if (number == SIGKILL) hint = "; if nobody killed it, look for the kernel's out-of-memory killer in dmesg";
    if (number == SIGBUS)
      hint =
          "; a page could not be had: /dev/shm, the memory of the asked NUMA node or its pool of huge pages is used up";
    return fmt::format("killed by signal {} ({}){}", number, ::strsignal(number), hint);
  }
  return fmt::format("ended with exit code {} without saying why", WEXITSTATUS(status_));
}

}  // namespace eb::supervise
