#include "harness/result/verify.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "harness/base/error.h"
#include "harness/cli/archive_place.h"
#include "harness/cli/cli.h"
#include "harness/result/json_value.h"

namespace eb::cli {

namespace {

struct VerifyArguments {
  std::vector<std::string> runs;
  std::string archive;
  bool all = false;
};

result::Json report_json(const std::string& name, const result::VerifyReport& report) {
  return {{"folder", name},
          {"name", report.scenario},
          {"complete", report.complete},
          {"files", report.files},
          {"events", report.events},
          {"samples_derived",
           report.not_derived.empty() ? result::Json(report.samples_derived) : result::missing(report.not_derived)},
          {"verdicts", report.verdicts},
          {"ok", true}};
}

std::string report_line(const std::string& name, const result::VerifyReport& report) {
  const std::string samples = report.not_derived.empty()
                                  ? fmt::format("{} samples follow from the events", report.samples_derived)
                                  : fmt::format("no sample was derived from events ({})", report.not_derived);
  return fmt::format(
      "{}: {} files and {} events are as they were written; {}; every cell and {} verdict(s) follow from the "
      "samples{}\n",
      name, report.files, report.events, samples, report.verdicts, report.complete ? "" : "; the run is not complete");
}

int run_verify(const VerifyArguments& arguments, const Globals& globals) {
  if (arguments.all == !arguments.runs.empty()) {
    fail(Exit::usage, "verify: name folders of runs, or --all for every run of the archive");
  }
  std::vector<std::string> names;
  std::vector<std::string> folders;
  std::vector<RunPlace> places;  // keep the archive locked
  std::unique_ptr<result::Archive> archive;
  if (arguments.all) {
    archive = std::make_unique<result::Archive>(archive_folder(arguments.archive), result::ArchiveUse::read);
    for (const result::ArchiveEntry& entry : archive->entries()) {
      archive->check_id(entry);
      names.push_back("archive:" + entry.id);
      folders.push_back(archive->folder_of(entry));
    }
  }
  for (const std::string& name : arguments.runs) {
    places.emplace_back(name, arguments.archive);
    names.push_back(name);
    folders.push_back(places.back().folder());
  }
  const std::vector<result::VerifyReport> reports = result::verify_all(folders);
  result::Json list = result::Json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    list.push_back(report_json(names[i], reports[i]));
    if (!globals.json && !globals.quiet) fmt::print("{}", report_line(names[i], reports[i]));
  }
  if (globals.json) {
    const bool single = !arguments.all && list.size() == 1;
    fmt::print("{}\n", result::dump(single ? list.front() : result::Json{{"runs", list}, {"ok", true}}));
  }
  return static_cast<int>(Exit::ok);
}

}  // namespace

void add_verify(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command = app.add_subcommand(
      "verify", "Check stored runs: hashes; samples against events; cells and verdicts against samples");
  auto arguments = std::make_shared<VerifyArguments>();
  command->add_option("DIR", arguments->runs, "Folders of runs, or archive:NAME");
  command->add_flag("--all", arguments->all, "Every run of the archive");
  add_archive_option(*command, arguments->archive);
  command->callback(
      [arguments, &globals, &action] { action = [arguments, &globals] { return run_verify(*arguments, globals); }; });
}

}  // namespace eb::cli
