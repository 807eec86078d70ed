// Errors a user sees, and the exit code each one ends the program with.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace eb {

// The exit codes of the command line (docs/cli.md). Checked in the order usage, skipped, failure.
enum class Exit : int {
  ok = 0,
  failure = 1,        // run time: memory, permission, disk, device, placement, a rank died
  usage = 2,          // usage or an invalid scenario
  regression = 3,     // --gate: a regression is shown
  inconclusive = 4,   // --gate: inconclusive or void
  bad_data = 5,       // rows differ from the reference, or an archive is corrupt
  skipped = 77,       // this machine lacks what the scenario needs
  interrupted = 130,  // SIGINT or SIGTERM; the partial result says so
};

// An error for the user: what was asked, what was found, what to do. `exit` is the code the program ends with.
class Error : public std::runtime_error {
 public:
  Error(Exit exit, const std::string& text) : std::runtime_error(text), exit_(exit) {}
  [[nodiscard]] Exit exit() const noexcept { return exit_; }

 private:
  Exit exit_;
};

// Throws Error with a formatted text: fail(Exit::usage, "unknown key {}", name).
template <typename... Args>
[[noreturn]] void fail(Exit exit, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(exit, fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error(Exit::failure) with `what` and the text of errno `number`.
[[noreturn]] void fail_errno(int number, const std::string& what);

}  // namespace eb
