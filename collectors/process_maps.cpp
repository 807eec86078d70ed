// The parsers: pure, no system calls. They walk over string views and copy what they keep; a broken field makes its
// line count as skipped, whatever it holds.
#include "collectors/process_maps.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>

namespace eb::collectors {

namespace {

std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

// Next word that ends at a blank; empty at the end of the line.
std::string_view take_word(std::string_view& line) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  const char* const end = line.data() + line.size();
  const char* start = line.data();
  while (start != end && blank(*start)) ++start;
  const char* stop = start;
  while (stop != end && !blank(*stop)) ++stop;
  line.remove_prefix(static_cast<std::size_t>(stop - line.data()));
  return {start, static_cast<std::size_t>(stop - start)};
}

// The whole of `text` as a number >= 0.
template <typename Number>
bool to_number(std::string_view text, int base, Number& value) {
  if (text.empty() || text.front() == '-') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc{} && end == text.data() + text.size();
}

bool to_bytes(std::int64_t kib, std::int64_t& bytes) {
  if (kib > std::numeric_limits<std::int64_t>::max() / 1024) return false;
  bytes = kib * 1024;
  return true;
}

// The kernel writes the characters that would break its format as \ooo: `escaped` holds these. It does not escape the
// backslash itself, so a name that holds "\040" literally reads as a blank in numa_maps: the kernel's own ambiguity.
std::string unescape(std::string_view text, std::string_view escaped) {
  if (text.find('\\') == std::string_view::npos) return std::string(text);
  std::string name;
  name.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '\\' && i + 3 < text.size()) {
      const auto [end, error] = std::from_chars(text.data() + i + 1, text.data() + i + 4, value, 8);
      if (error != std::errc{} || end != text.data() + i + 4 || value > 255) value = 0;
    }
    if (value != 0 && escaped.find(static_cast<char>(value)) != std::string_view::npos) {
      name += static_cast<char>(value);
      i += 3;
    } else {
      name += text[i];
    }
  }
  return name;
}

constexpr std::string_view kNumaMapsEscapes = "\n\t= ";
constexpr std::string_view kSmapsEscapes = "\n";

// "prefer (many):0-1" and "weighted interleave=static:0" are one policy in two words.
bool take_policy(std::string_view& line, std::string& policy) {
  const std::string_view first = take_word(line);
  if (first.empty()) return false;
  policy = first;
  std::string_view rest = line;
  const std::string_view second = take_word(rest);
  if (first == "prefer" && second.starts_with("(many)")) {
    policy = "preferred-many" + std::string(second.substr(6));
    line = rest;
  } else if (first == "weighted" && second.starts_with("interleave")) {
    policy = "weighted-" + std::string(second);
    line = rest;
  } else if (first == "prefer" || first.starts_with("prefer:") || first.starts_with("prefer=")) {
    policy = "preferred" + std::string(first.substr(6));
  }
  return true;
}

// One "key=value" or flag of a numa_maps line.
bool take_field(std::string_view word, NumaMapsEntry& entry) {
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos) {
    if (word == "huge") entry.huge = true;
    // "heap", "stack" and what a later kernel may add
    return true;
  }
  const std::string_view key = word.substr(0, equals);
  const std::string_view text = word.substr(equals + 1);
  if (key == "file") {
    entry.file = unescape(text, kNumaMapsEscapes);
    return true;
  }
  std::int64_t value = 0;
  if (key.empty() || !to_number(text, 10, value)) return false;
  int node = 0;
  if (key == "kernelpagesize_kB") return value > 0 && to_bytes(value, entry.kernel_page_bytes);
  if (key.front() == 'N' && to_number(key.substr(1), 10, node)) entry.node_pages[node] = value;
  return true;
}

bool parse_numa_line(std::string_view line, NumaMapsEntry& entry) {
  entry.raw = line;
  if (!to_number(take_word(line), 16, entry.address)) return false;
  if (!take_policy(line, entry.policy)) return false;
  for (std::string_view word = take_word(line); !word.empty(); word = take_word(line)) {
    if (!take_field(word, entry)) return false;
  }
  return true;
}

// "7f00-7f10 rw-s 00000000 00:1a 12   /dev/shm/x (deleted)"
bool parse_smaps_head(std::string_view line, SmapsEntry& entry) {
  const std::string_view range = take_word(line);
  const std::size_t dash = range.find('-');
  if (dash == std::string_view::npos) return false;
  if (!to_number(range.substr(0, dash), 16, entry.start) || !to_number(range.substr(dash + 1), 16, entry.end)) {
    return false;
  }
  const std::string_view permissions = take_word(line);
  if (entry.end <= entry.start || permissions.size() != 4 || !to_number(take_word(line), 16, entry.offset))
    return false;
  entry.permissions = permissions;
  const std::string_view device = take_word(line);
  if (device.find(':') == std::string_view::npos || !to_number(take_word(line), 10, entry.inode)) return false;
  entry.device = device;
  const std::size_t name = line.find_first_not_of(' ');
  if (name != std::string_view::npos) entry.file = unescape(line.substr(name), kSmapsEscapes);
  return true;
}

// "Rss:   12 kB", "VmFlags: rd wr", "THPeligible:  0". False: of no form.
bool parse_smaps_field(std::string_view line, SmapsEntry& entry) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0 || line.substr(0, colon).find(' ') != std::string_view::npos) {
    return false;
  }
  const std::string_view key = line.substr(0, colon);
  std::string_view rest = line.substr(colon + 1);
  if (key == "VmFlags") {
    const std::size_t start = rest.find_first_not_of(' ');
    const std::size_t end = rest.find_last_not_of(' ');
    if (start != std::string_view::npos) entry.vm_flags = rest.substr(start, end - start + 1);
    return true;
  }
  std::int64_t kib = 0;
  if (!to_number(take_word(rest), 10, kib)) return false;
  const std::string_view unit = take_word(rest);
  if (unit.empty()) return true;
  std::int64_t bytes = 0;
  if (unit != "kB" || !to_bytes(kib, bytes)) return false;
  entry.bytes.assign(key, bytes);
  return true;
}

// A head starts with a lower-case hex digit, a field with a capital.
bool looks_like_head(std::string_view line) {
  return !line.empty() && ((line[0] >= '0' && line[0] <= '9') || (line[0] >= 'a' && line[0] <= 'f'));
}

}  // namespace

void SmapsFields::assign(std::string_view name, std::int64_t value) {
  const auto at = find(name);
  if (at != end()) {
    fields_[static_cast<std::size_t>(at - begin())].second = value;
    return;
  }
  constexpr std::size_t kUsual = 26;  // Linux 6.18 has 24
  if (fields_.empty()) fields_.reserve(kUsual);
  fields_.emplace_back(name, value);
}

SmapsFields::Iterator SmapsFields::find(std::string_view name) const noexcept {
  return std::find_if(fields_.begin(), fields_.end(), [&](const Field& field) { return field.first == name; });
}

std::int64_t SmapsFields::at(std::string_view name) const {
  const auto found = find(name);
  if (found == end()) throw std::out_of_range(std::string(name));
  return found->second;
}

std::vector<NumaMapsEntry> parse_numa_maps(std::string_view text, std::int64_t* skipped) {
  constexpr std::size_t kUsualBytes = 80;  // of a line; counting them takes a sixth of the parser's time
  std::vector<NumaMapsEntry> entries;
  entries.reserve(text.size() / kUsualBytes + 1);
  std::int64_t bad = 0;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    NumaMapsEntry& entry = entries.emplace_back();
    if (!parse_numa_line(line, entry)) {
      entries.pop_back();
      ++bad;
    }
  }
  if (skipped != nullptr) *skipped = bad;
  return entries;
}

std::vector<SmapsEntry> parse_smaps(std::string_view text, std::int64_t* skipped) {
  constexpr std::size_t kUsualBytes = 600;  // of a mapping's text; of heads alone (maps) there are more to a text
  std::vector<SmapsEntry> entries;
  entries.reserve(text.size() / kUsualBytes + 1);
  std::int64_t bad = 0;
  const char* raw_start = nullptr;
  // `raw` is set when the entry ends: one copy of the piece of text, not one a line.
  const auto close_raw = [&](const char* end) {
    if (raw_start != nullptr) entries.back().raw.assign(raw_start, end);
    raw_start = nullptr;
  };
  while (!text.empty()) {
    const char* const line_start = text.data();
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    if (looks_like_head(line)) {
      close_raw(line_start);
      SmapsEntry& entry = entries.emplace_back();
      if (parse_smaps_head(line, entry)) {
        raw_start = line_start;
      } else {
        entries.pop_back();
        ++bad;
      }
      continue;
    }
    // Fields behind a head that was skipped belong to no mapping.
    if (raw_start == nullptr || !parse_smaps_field(line, entries.back())) ++bad;
  }
  close_raw(text.data());
  if (skipped != nullptr) *skipped = bad;
  return entries;
}

std::map<std::string, std::int64_t> parse_rollup(std::string_view text) {
  SmapsEntry entry;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (!looks_like_head(line)) parse_smaps_field(line, entry);
  }
  return {entry.bytes.begin(), entry.bytes.end()};
}

RangeMaps select_range(std::vector<NumaMapsEntry> numa, std::vector<SmapsEntry> smaps, std::uint64_t address,
                       std::uint64_t bytes) {
  RangeMaps range;
  const std::uint64_t end = address + bytes;
  std::uint64_t covered = 0;
  for (SmapsEntry& entry : smaps) {
    if (entry.end <= address || entry.start >= end) continue;
    covered += std::min(end, entry.end) - std::max(address, entry.start);
    if (entry.start < address || entry.end > end) range.covers_more = true;
    range.smaps.push_back(std::move(entry));
  }
  range.has_holes = covered < bytes;
  const NumaMapsEntry* before = nullptr;
  for (const NumaMapsEntry& entry : numa) {
    if (entry.address <= address && (before == nullptr || entry.address > before->address)) before = &entry;
  }
  for (NumaMapsEntry& entry : numa) {
    const bool inside = entry.address > address && entry.address < end;
    const bool first =
        &entry == before && (smaps.empty() || (!range.smaps.empty() && range.smaps.front().start == entry.address));
    if (inside || first) range.numa.push_back(std::move(entry));
  }
  return range;
}

}  // namespace eb::collectors
