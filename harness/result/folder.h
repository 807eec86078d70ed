// The folder of a run. Every file is written to a temporary name and renamed; events grow behind a valid header. The
// manifest is written before the result that it belongs to, so that a result which says `complete` always has one.
#pragma once

#include <string>
#include <vector>

#include "harness/result/npy.h"

namespace eb::result {

// "2026-11-29T12:00:00Z".
[[nodiscard]] std::string utc_now();

class RunFolder {
 public:
  // Creates `path` with its subfolders. Errors: Error(usage) where it exists and `force` is false, or where it exists
  // and is not the folder of a run; Error(failure) where it cannot be made (read-only, full). With `force` the files of
  // the earlier run are removed first, and nothing else.
  RunFolder(const std::string& path, bool force);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // `name` is relative, subfolder included. Errors: Error(failure) that names the file.
  void write(const std::string& name, const std::string& text);
  void append_log(const std::string& line);
  [[nodiscard]] EventFile event_file(int rank) const;

  // Keeps `bytes` of the disk aside, so that a run that fills it can still end its record; released before that record
  // is written. Errors: Error(failure) where the disk does not have them.
  void keep_reserve(std::size_t bytes);
  void release_reserve() noexcept;

  // Writes MANIFEST.sha256 over all files and `result_text`, then result.json.
  void seal(const std::string& result_text);

 private:
  std::string path_;
  std::size_t reserved_ = 0;
};

// Relative names of the files of a run, ascending; MANIFEST.sha256 and temporary names are left out.
[[nodiscard]] std::vector<std::string> run_files(const std::string& path);

// "results/<name>-20260131T235959Z".
[[nodiscard]] std::string default_folder(const std::string& scenario_name);

}  // namespace eb::result
