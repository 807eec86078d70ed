// The hidden subcommand that a rank process is: its channel to the supervisor is an inherited descriptor.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <csignal>

#include "harness/base/error.h"
#include "harness/cli/cli.h"
#include "harness/rank/rank_parts.h"

namespace eb::cli {

void add_rank(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("rank", "One rank process; started by run")->group("");
  auto fd = std::make_shared<int>(-1);
  command->add_option("--fd", *fd, "Descriptor of the channel to the supervisor")->required();
  command->callback([&action, fd] {
    action = [fd] {
      int type = 0;
      socklen_t size = sizeof type;
      if (::getsockopt(*fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) {
        fail(Exit::usage, "rank: descriptor {} is no channel; this command is started by `engram-bench run`", *fd);
      }
      ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
      control::Channel channel{UniqueFd(*fd)};
      return rank::run_rank(channel, rank::real_parts());
    };
  });
}

}  // namespace eb::cli
