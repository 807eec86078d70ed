#include "collectors/live_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>

#include "placement/backing.h"
#include "placement/policy.h"

namespace eb::collectors {

namespace {

constexpr double kCovered = 0.95;  // of huge pages that were asked for
constexpr double kAll = 0.995;     // of pages, of PSS: what rounding and pages on their way may take away

std::vector<int> numbers_of(const std::string& list) {
  std::vector<int> numbers;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at != end) {
    int first = 0;
    auto [next, error] = std::from_chars(at, end, first);
    if (error != std::errc{}) return numbers;
    int last = first;
    if (next != end && *next == '-') {
      const auto [after, wrong] = std::from_chars(next + 1, end, last);
      if (wrong != std::errc{}) return numbers;
      next = after;
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    at = next != end && *next == ',' ? next + 1 : end;
  }
  return numbers;
}

std::string nodes_text(const std::vector<int>& nodes) {
  return fmt::format("{} {}", nodes.size() == 1 ? "node" : "nodes", placement::node_list(nodes));
}

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

// "0 (62.5 %), 1 (37.5 %)"
std::string shares_text(const TablePages& pages) {
  const auto total = static_cast<double>(pages.present_bytes());
  std::string text;
  for (const auto& [node, bytes] : pages.node_bytes) {
    if (bytes == 0) continue;
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", node, percent(static_cast<double>(bytes) / total));
  }
  return text;
}

std::vector<int> nodes_with_pages(const TablePages& pages) {
  std::vector<int> nodes;
  for (const auto& [node, bytes] : pages.node_bytes) {
    if (bytes > 0) nodes.push_back(node);
  }
  return nodes;
}

TablePages pages_of(const std::vector<LiveProcess>& processes, const LiveTable& table) {
  if (table.kind == MappingKind::shared) {
    std::vector<std::vector<LivePiece>> readers;
    for (const LiveReader& reader : table.readers) readers.push_back(mapping_of(processes, reader).parts);
    return count_pages(readers);
  }
  const LiveMapping& mapping = mapping_of(processes, table.fullest);
  return {mapping.bytes, mapping.node_bytes, mapping.page_bytes, {0}, 0};
}

class Finder {
 public:
  Finder(const std::vector<LiveProcess>& processes, const std::vector<LiveTable>& tables, const LiveMachine& machine)
      : processes_(processes), tables_(tables), machine_(machine) {}

  std::vector<LiveFinding> run() {
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      at_ = static_cast<int>(i);
      where(tables_[i]);
      huge_pages(tables_[i]);
      presence(tables_[i]);
      others(tables_[i]);
      policies(tables_[i]);
    }
    at_ = -1;
    for (const LiveProcess& process : processes_) affinity(process);
    return std::move(findings_);
  }

 private:
  void add(const char* code, const LiveTable& table, std::string text) {
    std::vector<int> pids;
    for (const LiveReader& reader : table.readers) pids.push_back(processes_[reader.process].pid);
    findings_.push_back({code, at_, std::move(pids), std::move(text)});
  }

  // "readers' GPUs are on nodes 0-1", else of their CPUs; empty: neither is known.
  std::string readers_text(const LiveTable& table) const {
    std::set<int> devices;
    std::set<int> cpus;
    bool guessed = false;
    for (const LiveReader& reader : table.readers) {
      const LiveProcess& process = processes_[reader.process];
      for (const int node : device_nodes(process)) devices.insert(node);
      for (const int node : nodes_of_cpus(process.cpus, machine_)) cpus.insert(node);
      guessed = guessed || (process.devices.size() > 1 && process.devices.front().source != "nvml");
    }
    const auto& nodes = devices.empty() ? cpus : devices;
    if (nodes.empty()) return "";
    const std::vector<int> list(nodes.begin(), nodes.end());
    const char* whose = devices.empty() ? "readers' CPUs are on"
                        : guessed       ? "readers have GPUs open on"
                                        : "readers' GPUs are on";
    return fmt::format("; {} {}", whose, nodes_text(list));
  }

  void where(const LiveTable& table) {
    const TablePages& pages = table.pages;
    const std::vector<int> nodes = nodes_with_pages(pages);
    if (nodes.empty()) return;
    // Only of the pages that were counted can it be said where they lie.
    const double share = static_cast<double>(pages.present_bytes()) / static_cast<double>(pages.bytes);
    const std::string which =
        share >= kAll ? "pages of this table" : fmt::format("the pages counted ({} of this table)", percent(share));
    if (nodes.size() == 1) {
      add("pages_on_one_node", table,
          fmt::format("all {} lie on node {}{}", which, nodes.front(), readers_text(table)));
    } else {
      add("pages_spread", table, fmt::format("{} lie on nodes {}{}", which, shares_text(pages), readers_text(table)));
    }
  }

  void huge_pages(const LiveTable& table) {
    const LiveMapping& fullest = mapping_of(processes_, table.fullest);
    const std::string by = huge_pages_asked(fullest, machine_);
    const std::int64_t present = std::max(fullest.present_bytes(), fullest.rss_bytes);
    if (by.empty() || present == 0) return;
    const double share = static_cast<double>(fullest.huge_mapped_bytes) / static_cast<double>(present);
    if (share < kCovered)
      add("thp_not_covered", table, fmt::format("THP asked for ({}), {} covered", by, percent(share)));
  }

  void presence(const LiveTable& table) {
    const TablePages& pages = table.pages;
    if (pages.page_bytes == 0) return;
    for (const LiveReader& reader : table.readers) {
      if (!mapping_of(processes_, reader).overlaps) continue;
      add("mapped_twice", table,
          fmt::format("process {} maps parts of this table twice: their pages are counted from the mapping with more",
                      processes_[reader.process].pid));
    }
    const auto bytes = static_cast<double>(pages.bytes);
    const double share = static_cast<double>(pages.present_bytes()) / bytes;
    const double uncounted = static_cast<double>(pages.uncounted_bytes.value_or(0)) / bytes;
    if (!pages.uncounted_bytes || uncounted > 1 - kAll) {
      add("counted_in_part", table,
          fmt::format(
              "{} of this table {} in page tables of other readers, which do not tell on which node: process {} "
              "was counted, having most",
              pages.uncounted_bytes ? percent(uncounted) : "a part", pages.uncounted_bytes ? "is" : "may be",
              processes_[table.readers[pages.readers.front()].process].pid));
    }
    if (share + uncounted < kAll) {
      add("not_present", table,
          fmt::format("{} of {} have no page in the page table of any process given (not touched, not registered, or "
                      "touched by a process that was not given)",
                      percent(1 - share - uncounted), placement::human_bytes(pages.bytes)));
    }
    for (const LiveReader& reader : table.readers) {
      const LiveMapping& own = mapping_of(processes_, reader);
      const TablePages mapped = count_pages({own.parts});
      const double part = static_cast<double>(mapped.present_bytes()) / static_cast<double>(mapped.bytes);
      if (own.page_bytes == 0 || own.overlaps || part >= kAll * (share + uncounted)) continue;
      add("partly_in_page_table", table,
          fmt::format("process {} has pages for {} of what it maps of this table in its page table; of the whole table "
                      "{} have some in the processes given",
                      processes_[reader.process].pid, percent(part), percent(share + uncounted)));
    }
  }

  // PSS divides a page by all who map it: where it does not add up, somebody was not given.
  void others(const LiveTable& table) {
    if (table.kind != MappingKind::shared) return;
    double pss = 0;
    for (const LiveReader& reader : table.readers) {
      const LiveMapping& own = mapping_of(processes_, reader);
      if (!own.pss_bytes) return;
      pss += static_cast<double>(*own.pss_bytes);
    }
    const double share =
        pss / static_cast<double>(table.pages.present_bytes() + table.pages.uncounted_bytes.value_or(0));
    if (pss > 0 && share < kAll) {
      add("mapped_by_others", table,
          fmt::format("PSS of the processes given adds up to {} of this table's pages: others map it too",
                      percent(share)));
    }
  }

  void policies(const LiveTable& table) {
    std::set<std::string> found;
    for (const LiveReader& reader : table.readers) {
      const LiveMapping& own = mapping_of(processes_, reader);
      found.insert(own.policies.begin(), own.policies.end());
    }
    if (found.size() < 2) return;
    std::string text;
    for (const std::string& policy : found) text += (text.empty() ? "" : ", ") + policy;
    add("policies_differ", table,
        fmt::format("policies of this table differ by process or part: {}; without a policy of its own, whoever faults "
                    "a page places it by the task's",
                    text));
  }

  void affinity(const LiveProcess& process) {
    const std::vector<int> devices = device_nodes(process);
    const std::vector<int> cpus = nodes_of_cpus(process.cpus, machine_);
    if (process.devices.size() != 1 || devices.size() != 1 || cpus.empty()) return;
    if (std::find(cpus.begin(), cpus.end(), devices.front()) != cpus.end()) return;
    findings_.push_back({"cpus_far_from_device",
                         -1,
                         {process.pid},
                         fmt::format("process {} runs on CPUs of {}, its GPU {} is on node {}", process.pid,
                                     nodes_text(cpus), process.devices.front().bus_id, devices.front())});
  }

  const std::vector<LiveProcess>& processes_;
  const std::vector<LiveTable>& tables_;
  const LiveMachine& machine_;
  int at_ = -1;
  std::vector<LiveFinding> findings_;
};

}  // namespace

const LiveMapping& mapping_of(const std::vector<LiveProcess>& processes, const LiveReader& reader) {
  return processes[reader.process].mappings[reader.mapping];
}

std::vector<LiveTable> group_tables(const std::vector<LiveProcess>& processes) {
  std::vector<LiveTable> tables;
  std::map<std::pair<std::string, std::uint64_t>, std::size_t> known;
  for (std::size_t p = 0; p < processes.size(); ++p) {
    for (std::size_t m = 0; m < processes[p].mappings.size(); ++m) {
      const LiveMapping& mapping = processes[p].mappings[m];
      const bool groups = mapping.kind == MappingKind::shared;
      const auto key = std::make_pair(mapping.device, mapping.inode);
      const auto at = groups ? known.find(key) : known.end();
      if (at == known.end()) {
        if (groups) known[key] = tables.size();
        tables.push_back({mapping.kind, mapping.file, mapping.device, mapping.inode, {{p, m}}, {p, m}, {}});
        continue;
      }
      LiveTable& table = tables[at->second];
      table.readers.push_back({p, m});
      if (mapping.present_bytes() > mapping_of(processes, table.fullest).present_bytes()) table.fullest = {p, m};
    }
  }
  for (LiveTable& table : tables) table.pages = pages_of(processes, table);
  std::stable_sort(tables.begin(), tables.end(),
                   [&](const LiveTable& a, const LiveTable& b) { return a.pages.bytes > b.pages.bytes; });
  return tables;
}

std::vector<int> nodes_of_cpus(const std::string& cpus, const LiveMachine& machine) {
  const std::vector<int> list = numbers_of(cpus);
  std::vector<int> nodes;
  for (const auto& [node, own] : machine.node_cpus) {
    const bool meets = std::any_of(own.begin(), own.end(),
                                   [&](int cpu) { return std::find(list.begin(), list.end(), cpu) != list.end(); });
    if (meets) nodes.push_back(node);
  }
  return nodes;
}

std::vector<int> device_nodes(const LiveProcess& process) {
  std::set<int> nodes;
  for (const DeviceHold& device : process.devices) {
    if (device.node >= 0) nodes.insert(device.node);
  }
  return {nodes.begin(), nodes.end()};
}

std::optional<double> local_share(const LiveProcess& process, const TablePages& pages) {
  const std::vector<int> nodes = device_nodes(process);
  const std::int64_t total = pages.present_bytes();
  if (process.devices.size() != 1 || nodes.size() != 1 || total == 0) return std::nullopt;
  const auto at = pages.node_bytes.find(nodes.front());
  return at == pages.node_bytes.end() ? 0.0 : static_cast<double>(at->second) / static_cast<double>(total);
}

std::string huge_pages_asked(const LiveMapping& mapping, const LiveMachine& machine) {
  if (mapping.huge_refused || mapping.kind == MappingKind::driver || mapping.kind == MappingKind::file) return "";
  if (mapping.pool_bytes > 0 || mapping.page_bytes > 4096) return "";  // a pool's pages, not THP
  if (mapping.huge_asked) return "madvise";
  const auto on = [](const std::string& word) { return word == "always" || word == "within_size" || word == "force"; };
  if (mapping.kind == MappingKind::anonymous) {
    return on(machine.thp_anon) ? "transparent_hugepage " + machine.thp_anon : "";
  }
  if (on(mapping.mount_huge)) return "mount option huge=" + mapping.mount_huge;
  const bool no_mount = mapping.file.starts_with("/memfd:") || mapping.file.starts_with("/dev/zero");
  return no_mount && on(machine.thp_shmem) ? "shmem_enabled " + machine.thp_shmem : "";
}

std::vector<LiveFinding> find_in(const std::vector<LiveProcess>& processes, const std::vector<LiveTable>& tables,
                                 const LiveMachine& machine) {
  return Finder(processes, tables, machine).run();
}

}  // namespace eb::collectors
