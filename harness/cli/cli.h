// The command line: one file a subcommand. Data on stdout, all else on stderr.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace eb::cli {

struct Globals {
  bool json = false;
  bool quiet = false;
  int verbose = 0;
  bool no_progress = false;
};

// What the chosen subcommand does after parsing; returns the exit code, may throw eb::Error.
using Action = std::function<int()>;

// Each adds its subcommand to `app` and, when parsed, sets `action`.
void add_run(CLI::App& app, const Globals& globals, Action& action);
void add_plan(CLI::App& app, const Globals& globals, Action& action);
void add_inspect(CLI::App& app, const Globals& globals, Action& action);
void add_topo(CLI::App& app, const Globals& globals, Action& action);
void add_observe(CLI::App& app, const Globals& globals, Action& action);
void add_doctor(CLI::App& app, const Globals& globals, Action& action);
void add_verify(CLI::App& app, const Globals& globals, Action& action);
void add_compare(CLI::App& app, const Globals& globals, Action& action);
void add_selftest(CLI::App& app, const Globals& globals, Action& action);
void add_archive(CLI::App& app, const Globals& globals, Action& action);
void add_sweep(CLI::App& app, const Globals& globals, Action& action);
void add_rank(CLI::App& app, Action& action);  // hidden: one rank process

// The whole program: parses, runs, prints errors, returns the exit code.
int run(int argc, char** argv);

}  // namespace eb::cli
