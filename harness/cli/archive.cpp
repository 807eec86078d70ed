// archive: runs kept side by side, and a metric over them.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/cli/archive_history.h"
#include "harness/cli/archive_place.h"
#include "harness/cli/cli.h"
#include "harness/cli/tables.h"
#include "harness/result/archive.h"
#include "harness/result/verify.h"

namespace eb::cli {

namespace {

using result::Archive;
using result::ArchiveEntry;
using result::ArchiveUse;
using result::Json;

struct ArchiveArguments {
  std::string archive;
  std::vector<std::string> folders;
  std::string name;
  std::string run;
  HistoryQuery query;
  int keep = -1;
  std::string before;
  bool yes = false;
};

std::string line_of(const ArchiveEntry& entry) {
  std::string verdicts;
  for (const Json& one : entry.verdicts) {
    verdicts += fmt::format(" {}:{}", one.at("arms").back().get<std::string>(),
                            one.at("verdict").is_null() ? "none" : one.at("verdict").get<std::string>());
  }
  return fmt::format("{}  {}  {:24} {:>9.1f} KiB {}{}{}\n", entry.short_id(), entry.date, entry.name,
                     static_cast<double>(entry.bytes) / 1024, entry.complete ? "" : " not complete",
                     entry.injected ? " injected" : "", verdicts);
}

int add(const ArchiveArguments& arguments, const Globals& globals) {
  const std::string folder = archive_folder(arguments.archive);
  static_cast<void>(result::verify_all(arguments.folders));
  Json list = Json::array();
  Archive archive(folder, ArchiveUse::write);
  for (const std::string& run : arguments.folders) {
    bool added = false;
    const ArchiveEntry entry = archive.add(run, arguments.name, added);
    if (globals.json) {
      Json one = entry_json(entry);
      one["added_now"] = added;
      list.push_back(std::move(one));
    } else {
      fmt::print("{} {}", added ? "added" : "is there already:", line_of(entry));
    }
  }
  archive.write_index();
  if (globals.json) fmt::print("{}\n", result::dump({{"archive", folder}, {"runs", list}}));
  return static_cast<int>(Exit::ok);
}

int list(const ArchiveArguments& arguments, const Globals& globals) {
  const Archive archive(archive_folder(arguments.archive), ArchiveUse::read);
  Json runs = Json::array();
  for (const ArchiveEntry& entry : archive.entries()) {
    if (!arguments.name.empty() && entry.name != arguments.name) continue;
    if (!globals.json) fmt::print("{}", line_of(entry));
    runs.push_back(entry_json(entry));
  }
  if (globals.json) {
    fmt::print("{}\n", result::dump({{"archive", archive.path()}, {"runs", runs}}));
  } else if (runs.empty()) {
    fmt::print(stderr, "engram-bench: no such run in {}\n", archive.path());
  }
  return static_cast<int>(Exit::ok);
}

int show(const ArchiveArguments& arguments, const Globals& globals) {
  const Archive archive(archive_folder(arguments.archive), ArchiveUse::read);
  const ArchiveEntry& entry = archive.find(arguments.run);
  const std::string folder = archive.folder_of(entry);
  static_cast<void>(result::verify(folder));
  const Json document = Json::parse(read_file(folder + "/result.json"));
  if (globals.json) {
    fmt::print("{}\n", result::dump({{"folder", folder}, {"entry", entry_json(entry)}, {"result", document}}));
    return static_cast<int>(Exit::ok);
  }
  fmt::print("run {}\nname {}, of {}, added {}\ncommit {}, program {}, plan {}\n{}", entry.id, entry.name, entry.date,
             entry.added, entry.commit.empty() ? "not known" : entry.commit,
             entry.binary_sha256.empty() ? "not known" : entry.binary_sha256.substr(0, 12),
             entry.plan_sha256.substr(0, 12), result_tables(document, folder, globals.verbose > 0));
  return static_cast<int>(Exit::ok);
}

int show_history(const ArchiveArguments& arguments, const Globals& globals) {
  const Archive archive(archive_folder(arguments.archive), ArchiveUse::read);
  HistoryQuery query = arguments.query;
  query.name = arguments.name;
  const Json document = history(archive, query);
  if (globals.json) {
    fmt::print("{}\n", result::dump(document));
  } else {
    fmt::print("{}", history_table(document));
  }
  return static_cast<int>(Exit::ok);
}

int prune(const ArchiveArguments& arguments, const Globals& globals) {
  result::PruneRule rule;
  if (arguments.keep >= 0) rule.keep = arguments.keep;
  rule.before = arguments.before;
  rule.name = arguments.name;
  if (!rule.keep && rule.before.empty()) {
    fail(Exit::usage, "archive prune: say what may go: --keep N, --before DATE or both");
  }
  const std::string folder = archive_folder(arguments.archive);
  static_cast<void>(Archive(folder, ArchiveUse::read));  // where there is none, none is made
  Archive archive(folder, arguments.yes ? ArchiveUse::write : ArchiveUse::read);
  const std::vector<ArchiveEntry> going = to_prune(archive.entries(), rule);
  if (arguments.yes) {
    std::vector<std::string> ids;
    for (const ArchiveEntry& entry : going) ids.push_back(entry.id);
    archive.remove(ids);
  }
  Json list = Json::array();
  for (const ArchiveEntry& entry : going) {
    if (!globals.json) fmt::print("{} {}", arguments.yes ? "removed" : "would remove", line_of(entry));
    list.push_back(entry_json(entry));
  }
  if (globals.json) {
    fmt::print("{}\n", result::dump({{"archive", folder}, {"removed", arguments.yes}, {"runs", list}}));
  } else if (!arguments.yes) {
    fmt::print("{} run(s) would go; nothing was removed: --yes removes them\n", going.size());
  }
  return static_cast<int>(Exit::ok);
}

using Part = int (*)(const ArchiveArguments&, const Globals&);

}  // namespace

void add_archive(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command = app.add_subcommand("archive", "Keep runs side by side; follow a metric over them");
  command->require_subcommand(1);
  auto arguments = std::make_shared<ArchiveArguments>();
  const auto part = [&](const char* name, const char* text, Part run) {
    CLI::App* one = command->add_subcommand(name, text);
    add_archive_option(*one, arguments->archive);
    one->callback([arguments, run, &globals, &action] { action = [=, &globals] { return run(*arguments, globals); }; });
    return one;
  };
  const char* const named = "Only runs of this name";
  CLI::App* adding = part("add", "Verify runs and copy them in", add);
  adding->add_option("DIR", arguments->folders, "Folders of runs")->required();
  adding->add_option("--name", arguments->name, "Name of the run in the archive [its scenario's]");
  CLI::App* listing = part("list", "All runs, from the oldest on", list);
  listing->add_option("--name", arguments->name, named);
  CLI::App* showing = part("show", "Verify one run and print its result", show);
  showing->add_option("RUN", arguments->run, "Name, NAME@latest, or the first digits of an id")->required();
  CLI::App* following = part("history", "One metric over the runs, with the commit of each", show_history);
  following->add_option("METRIC", arguments->query.metric, "As in experiment.primary, for example lookup_us.l1.p95")
      ->required();
  following->add_option("--name", arguments->name, named);
  following->add_option("--arm", arguments->query.arm, "Only this arm");
  CLI::App* pruning = part("prune", "Show the runs that a rule lets go; with --yes remove them", prune);
  pruning->add_option("--keep", arguments->keep, "All but the newest N complete runs of each name may go")
      ->type_name("N")
      ->check(CLI::Range(0, 1'000'000));
  pruning
      ->add_option("--before", arguments->before,
                   "Runs from before this day (2026-01-31) or time (2026-01-31T12:00:00Z) may go; with --keep only "
                   "what both let go")
      ->type_name("DATE");
  pruning->add_option("--name", arguments->name, named);
  pruning->add_flag("--yes", arguments->yes, "Remove them; without it nothing is removed");
}

}  // namespace eb::cli
