// An archive: a folder of runs with an index (docs/archive.md). Every run lies in a folder named after its content, put
// there by one rename; so whatever is killed when, what lies under runs/ is whole. The index is a copy for speed and is
// made again where it does not fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/base/unique_fd.h"
#include "harness/result/json_value.h"

namespace eb::result {

// What the index says of a run.
struct ArchiveEntry {
  std::string id;             // SHA-256 of the run's manifest: 64 hex digits
  std::string name;           // given, or the scenario's
  std::string date;           // of the run, UTC, "2026-01-31T23:59:59Z"
  std::string added;          // to the archive
  std::string version;        // of the program that ran it
  std::string commit;         // that it was built from; empty: not known
  std::string binary_sha256;  // empty: not known
  std::string plan_sha256;
  bool complete = false;
  bool injected = false;  // extra work was planted: no baseline
  std::int64_t files = 0;
  std::int64_t bytes = 0;
  Json verdicts = Json::array();  // {arms, metric, verdict}

  [[nodiscard]] std::string short_id() const { return id.substr(0, 12); }
};
[[nodiscard]] Json entry_json(const ArchiveEntry& entry);

enum class ArchiveUse { read, write };

// An archive, locked while the object lives: any number of readers, or one writer. Not thread-safe.
class Archive {
 public:
  // `write` makes the archive where there is none, and removes what a killed writer left. Waits for the lock.
  // Errors: Error(usage) for a folder that is no archive, or for reading where there is none; Error(bad_data) for one
  // of a newer version; Error(failure) where it cannot be read or made.
  Archive(const std::string& path, ArchiveUse use);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // By date, then id.
  [[nodiscard]] const std::vector<ArchiveEntry>& entries() const noexcept { return entries_; }
  // "NAME", "NAME@latest" (the newest complete run of that name) or the first digits of an id, four or more.
  // Errors: Error(usage) that lists the candidates where several fit, or what is there where none does.
  [[nodiscard]] const ArchiveEntry& find(const std::string& text) const;
  [[nodiscard]] std::string folder_of(const ArchiveEntry& entry) const;
  // Errors: Error(bad_data) where the run's manifest is not the one that its id is of.
  void check_id(const ArchiveEntry& entry) const;

  // Copies the run in `folder`, which verify() must have accepted, and checks the copy's hashes. `name` empty: the
  // scenario's. A run that is there already is left as it is; `added` says which. Errors: Error(failure) where the copy
  // cannot be written, Error(bad_data) where it is not what the manifest says; the archive is then as it was.
  // The index is written by write_index(); until then it is one that does not fit.
  const ArchiveEntry& add(const std::string& folder, const std::string& name, bool& added);
  // Removes runs; ids that are not there are passed over.
  void remove(const std::vector<std::string>& ids);

  void write_index() const;

 private:
  void load();

  std::string path_;
  UniqueFd lock_;
  std::vector<ArchiveEntry> entries_;
};

// What prune takes away: a run that every given rule lets go.
struct PruneRule {
  std::optional<int> keep;  // all but the newest so many complete runs of each name; incomplete ones beside them go
  std::string before;       // runs that began before this date, "2026-01-31" or "2026-01-31T12:00:00Z"; empty: any
  std::string name;         // runs of this name alone; empty: all
};
// Of `entries` (by date), those that go, in order. Pure. Errors: Error(usage) for a date of another form.
[[nodiscard]] std::vector<ArchiveEntry> to_prune(const std::vector<ArchiveEntry>& entries, const PruneRule& rule);

}  // namespace eb::result
