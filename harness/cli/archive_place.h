// Where the archive lies, and runs named "archive:NAME" on the command line.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "harness/result/archive.h"

namespace eb::cli {

void add_archive_option(CLI::App& command, std::string& folder);

// `wish`, else $ENGRAM_BENCH_ARCHIVE, else the folder "archive" of the state folder. Errors: Error(usage) where nothing
// says where.
[[nodiscard]] std::string archive_folder(const std::string& wish);

// The folder of a run. For "archive:NAME" the archive stays locked against writers while the object lives.
class RunPlace {
 public:
  // Errors: those of Archive and Archive::find.
  RunPlace(const std::string& text, const std::string& archive_wish);
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  std::unique_ptr<result::Archive> archive_;
  std::string folder_;
};

}  // namespace eb::cli
