#include "harness/cli/cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "harness/base/error.h"
#include "harness/plan/nearest.h"

namespace eb::cli {

namespace {

// Commands of the design that this version does not have: refused by name, so that nobody takes silence for success.
constexpr const char* kNotBuilt[] = {"report"};

void add_globals(CLI::App& app, Globals& globals) {
  app.add_flag("--json", globals.json, "Print data as JSON");
  app.add_flag("-q,--quiet", globals.quiet, "Print errors only on stderr");
  app.add_flag("-v,--verbose", globals.verbose, "More on stderr; twice for debugging");
  app.add_flag("--no-progress", globals.no_progress, "No progress bar");
}

// CLI11 takes an unknown command for a missing one.
void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  const char* const* word =
      std::find_if(argv + std::min(argc, 1), argv + argc, [](const char* text) { return *text != '-'; });
  if (word == argv + argc) return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == *word) return;
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  fail(Exit::usage, "unknown command {}: did you mean {}? (engram-bench --help lists all)", *word,
       plan::nearest(*word, names));
}

int parse_and_act(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write, as a full disk is
  CLI::App app{"Where do huge lookup tables lie, and when must they be read? Experiments with evidence.",
               "engram-bench"};
  app.set_version_flag("--version", "engram-bench 0.1.0");
  app.require_subcommand(1);
  app.fallthrough();
  Globals globals;
  Action action;
  add_globals(app, globals);
  add_doctor(app, globals, action);
  add_inspect(app, globals, action);
  add_run(app, globals, action);
  add_verify(app, globals, action);
  add_plan(app, globals, action);
  add_topo(app, globals, action);
  add_observe(app, globals, action);
  add_compare(app, globals, action);
  add_selftest(app, globals, action);
  add_sweep(app, globals, action);
  add_archive(app, globals, action);
  add_rank(app, action);
  for (const char* name : kNotBuilt) {
    app.add_subcommand(name, "Not in this version")->group("")->allow_extras()->callback([name] {
      fail(Exit::usage, "{}: not in this version of engram-bench", name);
    });
  }
  try {
    refuse_unknown_command(app, argc, argv);
    app.parse(argc, argv);
    return action ? action() : static_cast<int>(Exit::usage);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(Exit::usage);
  } catch (const Error& error) {
    fmt::print(stderr, "engram-bench: {}\n", error.what());
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    fmt::print(stderr, "engram-bench: {}\n", error.what());
    return static_cast<int>(Exit::failure);
  }
}

}  // namespace

int run(int argc, char** argv) {
  const int code = parse_and_act(argc, argv);
  // What no reader could get is no success, whatever wrote it: a full disk shows when the buffer is written at last.
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "engram-bench: standard output: {}\n", std::strerror(errno));
  return code == 0 ? static_cast<int>(Exit::failure) : code;
}

}  // namespace eb::cli
