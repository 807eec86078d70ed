#include "harness/result/verify.h"

#include <fmt/format.h>

#include <memory>

#include "harness/base/error.h"
#include "harness/cli/cli.h"
#include "harness/result/json_value.h"

namespace eb::cli {

void add_verify(CLI::App& app, const Globals& globals, Action& action) {
  CLI::App* command =
      app.add_subcommand("verify", "Check an archived run: hashes, event files, cells and verdicts against samples");
  auto folder = std::make_shared<std::string>();
  command->add_option("DIR", *folder, "Folder of a run")->required();
  command->callback([folder, &globals, &action] {
    action = [folder, &globals] {
      const result::VerifyReport report = result::verify(*folder);
      if (globals.json) {
        fmt::print("{}\n", result::dump({{"folder", *folder},
                                         {"name", report.scenario},
                                         {"complete", report.complete},
                                         {"files", report.files},
                                         {"events", report.events},
                                         {"verdicts", report.verdicts},
                                         {"ok", true}}));
      } else {
        fmt::print(
            "{}: {} files and {} events are as they were written; every cell and {} verdict(s) follow from the "
            "samples{}\n",
            *folder, report.files, report.events, report.verdicts, report.complete ? "" : "; the run is not complete");
      }
      return static_cast<int>(Exit::ok);
    };
  });
}

}  // namespace eb::cli
