#include "harness/cli/archive_place.h"

#include <cstdlib>
#include <string_view>

#include "harness/base/error.h"
#include "harness/result/floors.h"

namespace eb::cli {

namespace {
constexpr std::string_view kPrefix = "archive:";
}

void add_archive_option(CLI::App& command, std::string& folder) {
  command.add_option("--archive", folder,
                     "Folder of the archive [$ENGRAM_BENCH_ARCHIVE, else archive in $ENGRAM_BENCH_STATE, "
                     "$XDG_STATE_HOME/engram-bench or ~/.local/state/engram-bench]");
}

std::string archive_folder(const std::string& wish) {
  if (!wish.empty()) return wish;
  if (const char* own = std::getenv("ENGRAM_BENCH_ARCHIVE"); own != nullptr && *own != '\0') return own;
  if (const auto state = result::state_folder()) return *state + "/archive";
  fail(Exit::usage,
       "none of --archive, ENGRAM_BENCH_ARCHIVE, ENGRAM_BENCH_STATE, XDG_STATE_HOME and HOME says where "
       "the archive lies");
}

RunPlace::RunPlace(const std::string& text, const std::string& archive_wish) : folder_(text) {
  if (!text.starts_with(kPrefix)) return;
  archive_ = std::make_unique<result::Archive>(archive_folder(archive_wish), result::ArchiveUse::read);
  folder_ = archive_->folder_of(archive_->find(text.substr(kPrefix.size())));
}

}  // namespace eb::cli
