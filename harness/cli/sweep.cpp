// sweep: one run a cell of a grid of settings. A killed sweep goes on where it was.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/base/unique_fd.h"
#include "harness/cli/cli.h"
#include "harness/cli/execute.h"
#include "harness/cli/plan_report.h"
#include "harness/cli/settings.h"
#include "harness/cli/sweep_axes.h"
#include "harness/result/json_value.h"
#include "harness/result/verify.h"

namespace eb::cli {

namespace {

using result::Json;

struct SweepArguments {
  std::string scenario;
  std::string output;
  std::vector<std::string> axes;
  std::vector<std::string> settings;
  std::string seed;
  bool zip = false;
  bool dry_run = false;
  bool resume = false;
  double rank_timeout_s = 60;
};

struct Cell {
  std::string folder;
  std::string text;  // "prefetch.grid_cap=8 workload.steps=4"
  plan::Plan plan;
};

std::vector<Cell> make_cells(const SweepArguments& arguments, const std::string& output) {
  std::vector<Axis> axes;
  for (const std::string& text : arguments.axes) axes.push_back(parse_axis(text));
  std::vector<Cell> cells;
  for (const std::vector<plan::Setting>& own : combine(axes, arguments.zip)) {
    std::vector<plan::Setting> settings = parse_settings(arguments.settings, arguments.seed);
    Cell cell;
    for (const plan::Setting& one : own) {
      settings.push_back(one);
      cell.text += fmt::format("{}{}={}", cell.text.empty() ? "" : " ", one.key, one.value);
    }
    cell.plan = load_scenario(arguments.scenario, settings);
    cell.folder = fmt::format("{}/cell-{:04}", output, cells.size());
    cells.push_back(std::move(cell));
  }
  return cells;
}

// Held while a sweep runs, by the sweep alone: the ranks do not inherit it.
UniqueFd lock_sweep(const std::string& output) {
  const std::string name = output + "/lock";
  UniqueFd fd(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) fail_errno(errno, name);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    fail(Exit::usage, "{}: another sweep works there; wait for it, or choose another folder with -o", output);
  }
  return fd;
}

// Done: complete, of this plan, and every file as the manifest says. Errors: Error(usage) for another plan, and those
// of verify() for a complete run that is damaged.
bool is_done(const Cell& cell) {
  if (!result::ended_whole(cell.folder)) return false;
  const Json stored = Json::parse(read_file(cell.folder + "/plan.json"), nullptr, false);
  if (!stored.is_object() || stored.value("sha256", "") != cell.plan.sha256) {
    fail(Exit::usage, "{} holds a run of another plan; choose another folder with -o", cell.folder);
  }
  return result::verify(cell.folder).complete;
}

int print_estimate(const std::vector<Cell>& cells, bool json) {
  Json list = Json::array();
  double low = 0;
  double high = 0;
  bool known = true;
  std::int64_t most_bytes = 0;
  for (const Cell& cell : cells) {
    const PlanReport report = make_plan_report(cell.plan);
    std::int64_t bytes = 0;
    for (const ArmReport& arm : report.arms) {
      bytes = std::max(bytes, arm.memory.need.private_bytes + arm.memory.need.shared_bytes);
    }
    most_bytes = std::max(most_bytes, bytes);
    known = known && report.time.low_s && report.time.high_s;
    low += report.time.low_s.value_or(0);
    high += report.time.high_s.value_or(0);
    Json stops = Json::array();
    for (const supervise::Obstacle& one : report.obstacles) stops.push_back(one.text);
    list.push_back({{"cell", cell.folder},
                    {"settings", cell.text},
                    {"memory_bytes", bytes},
                    {"low_s", report.time.low_s ? Json(*report.time.low_s) : Json(nullptr)},
                    {"high_s", report.time.high_s ? Json(*report.time.high_s) : Json(nullptr)},
                    {"time_reason", report.time.reason},
                    {"would_stop_run", stops}});
  }
  if (json) {
    fmt::print("{}\n", result::dump({{"cells", list},
                                     {"most_memory_bytes", most_bytes},
                                     {"low_s", known ? Json(low) : Json(nullptr)},
                                     {"high_s", known ? Json(high) : Json(nullptr)}}));
    return static_cast<int>(Exit::ok);
  }
  for (const Json& one : list) {
    fmt::print("{}: {}: {:.1f} MiB{}{}\n", one["cell"].get<std::string>(), one["settings"].get<std::string>(),
               one["memory_bytes"].get<double>() / (1 << 20),
               one["low_s"].is_number()
                   ? fmt::format(", {:.1f} to {:.1f} s", one["low_s"].get<double>(), one["high_s"].get<double>())
                   : "",
               one["would_stop_run"].empty() ? "" : "; would stop: " + one["would_stop_run"][0].get<std::string>());
  }
  fmt::print("{} cells, one after the other: at most {:.1f} MiB at a time; {}\n", cells.size(),
             static_cast<double>(most_bytes) / (1 << 20),
             known ? fmt::format("{:.1f} to {:.1f} s", low, high)
                   : fmt::format("time not known: {}", list.front()["time_reason"].get<std::string>()));
  return static_cast<int>(Exit::ok);
}

int run_sweep(const SweepArguments& arguments, const Globals& globals) {
  const std::string output = arguments.output.empty() ? "results/sweep" : arguments.output;
  const std::vector<Cell> cells = make_cells(arguments, output);
  if (arguments.dry_run) return print_estimate(cells, globals.json);
  if (std::filesystem::exists(output) && !arguments.resume) {
    fail(Exit::usage, "{} exists: go on with it with --resume, or choose another with -o", output);
  }
  std::vector<Prepared> prepared;  // all are checked before the first one runs
  for (const Cell& cell : cells) {
    prepared.push_back(prepare(cell.plan));
    const auto obstacles = supervise::preflight(cell.plan);
    if (!obstacles.empty()) {
      fmt::print(stderr, "engram-bench: {}:\n", cell.text);
      return refuse_obstacles(obstacles);
    }
  }
  std::filesystem::create_directories(output);
  const UniqueFd lock = lock_sweep(output);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const Cell& cell = cells[i];
    const bool done = is_done(cell);
    if (!done) {
      // What a killed sweep left of this cell.
      if (std::filesystem::exists(cell.folder) && !std::filesystem::exists(cell.folder + "/result.json")) {
        std::filesystem::remove_all(cell.folder);
      }
      Execution execution;
      execution.folder = cell.folder;
      execution.force = true;
      execution.rank_timeout_ms = static_cast<std::int64_t>(arguments.rank_timeout_s * 1000);
      execution.command_line = fmt::format("engram-bench sweep {} ({})", arguments.scenario, cell.text);
      const Executed executed = execute(prepared[i], execution, globals);
      if (executed.exit != Exit::ok) return static_cast<int>(executed.exit);
    }
    if (!globals.quiet) {
      fmt::print("{}/{} {}: {}{}\n", i + 1, cells.size(), cell.folder, cell.text, done ? " (was done)" : "");
      std::fflush(stdout);
    }
  }
  return static_cast<int>(Exit::ok);
}

}  // namespace

void add_sweep(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command = app.add_subcommand("sweep", "Run a scenario over a grid of settings");
  auto arguments = std::make_shared<SweepArguments>();
  command->add_option("SCENARIO", arguments->scenario, "Scenario file (JSON)")->required();
  command->add_option("-o,--output", arguments->output, "Folder of the sweep, one run a cell in it [results/sweep]");
  command
      ->add_option("--axis", arguments->axes,
                   "KEY=A,B,... or KEY=FIRST-LAST, FIRST-LAST+STEP, FIRST-LAST*FACTOR; may be given again")
      ->required()
      ->allow_extra_args(false);
  command->add_flag("--zip", arguments->zip, "Take the axes side by side instead of every combination");
  add_settings(*command, arguments->settings, arguments->seed);
  command->add_flag("--dry-run", arguments->dry_run, "Print the cells with memory and time; run nothing");
  command->add_flag("--resume", arguments->resume, "Go on with the sweep in the output folder; finished cells stay");
  command
      ->add_option("--rank-timeout", arguments->rank_timeout_s, "Seconds without progress before a rank counts as hung")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command->callback(
      [arguments, &globals, &action] { action = [arguments, &globals] { return run_sweep(*arguments, globals); }; });
}

}  // namespace eb::cli
