// observe: what /proc says of running processes' tables. Reads only.
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <regex>
#include <set>

#include "collectors/nvml.h"
#include "collectors/observation.h"
#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/cli/cli.h"
#include "harness/supervise/reroll.h"
#include "harness/supervise/signals.h"
#include "placement/backing.h"
#include "placement/policy.h"

namespace eb::cli {

namespace {

using collectors::LiveMapping;
using collectors::LiveProcess;
using collectors::LiveTable;
using collectors::LookCode;
using collectors::Observation;
using placement::human_bytes;

struct Options {
  std::vector<int> pids;
  std::string match;
  std::string min_size;
  std::optional<double> watch_s;
};

// "512M", "1G", "4096": powers of 1024.
std::int64_t size_of(const std::string& text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value);
  int shift = -1;
  const std::string_view rest(unit, static_cast<std::size_t>(end - unit));
  if (rest.empty()) shift = 0;
  for (int i = 0; i < 4; ++i) {
    const char letter = "KMGT"[i];
    if (rest == std::string(1, letter) || rest == std::string(1, letter) + "iB") shift = 10 * (i + 1);
  }
  if (error != std::errc{} || value < 1 || shift < 0 || value > (INT64_MAX >> shift)) {
    fail(Exit::usage, "observe: --min-size {}: give bytes, or a number with K, M, G or T (512M, 1G)", text);
  }
  return value << shift;
}

collectors::TableFilter filter_of(const Options& options) {
  collectors::TableFilter filter;
  if (!options.match.empty()) {
    try {
      filter.match = std::regex(options.match, std::regex::ECMAScript);
      filter.match_text = options.match;
    } catch (const std::regex_error& error) {
      fail(Exit::usage, "observe: --match {}: not a regular expression ({})", options.match, error.what());
    }
  }
  if (!options.min_size.empty()) filter.min_bytes = filter.driver_bytes = size_of(options.min_size);
  return filter;
}

// ---- the tables for people

// Names are the watched program's to choose: none of their bytes may steer the terminal.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

void print_processes(const Observation& look) {
  fmt::print("Processes\n  {:>8}  {:<16} {:<12} {:<9} {:<6} {:<16} {}\n", "pid", "program", "CPUs", "CPU nodes", "mems",
             "task policy", "device (node)");
  for (const LiveProcess& process : look.processes) {
    std::string devices;
    for (const collectors::DeviceHold& device : process.devices) {
      const std::string which = device.bus_id.empty() ? fmt::format("/dev/nvidia{}", device.minor) : device.bus_id;
      devices += fmt::format("{}{} ({}{})", devices.empty() ? "" : ", ", which,
                             device.node >= 0 ? fmt::format("{}", device.node) : "unknown",
                             device.source == "nvml" ? "" : ", open");
    }
    fmt::print("  {:>8}  {:<16} {:<12} {:<9} {:<6} {:<16} {}\n", process.pid, printable(process.program), process.cpus,
               placement::node_list(collectors::nodes_of_cpus(process.cpus, look.machine)), process.mems_allowed,
               process.task_policy.value.value_or("unknown"), devices.empty() ? "none" : devices);
  }
}

std::string pages_text(const collectors::TablePages& pages) {
  if (pages.page_bytes == 0) return "unknown (numa_maps may not be read)";
  std::string text;
  for (const auto& [node, bytes] : pages.node_bytes) {
    text += fmt::format("{}N{}={} ({})", text.empty() ? "" : "  ", node, bytes / pages.page_bytes, human_bytes(bytes));
  }
  return text.empty() ? "none present" : text;
}

std::string policies_text(const LiveMapping& mapping) {
  std::string text;
  for (const std::string& policy : mapping.policies) text += (text.empty() ? "" : " + ") + policy;
  return text.empty() ? "unknown" : text;
}

void print_table(const Observation& look, std::size_t index) {
  const LiveTable& table = look.tables[index];
  const LiveMapping& fullest = collectors::mapping_of(look.processes, table.fullest);
  const collectors::TablePages& pages = table.pages;
  fmt::print("\nTable {}: {}, {}, {}\n", index, table.file.empty() ? "anonymous memory" : printable(table.file),
             collectors::name(table.kind), human_bytes(pages.bytes));
  if (table.kind == collectors::MappingKind::driver) {
    fmt::print("  the driver gives no identity: the same memory may be shown once a process\n");
  } else if (table.kind != collectors::MappingKind::anonymous) {
    fmt::print("  backing {} inode {}\n", table.device, table.inode);
  }
  std::string counted;
  for (const std::size_t reader : pages.readers) {
    counted += fmt::format("{}{}", counted.empty() ? "" : ", ", look.processes[table.readers[reader].process].pid);
  }
  fmt::print("  pages of {}: {}  (from {} {})\n",
             pages.page_bytes == 0 ? "unknown size" : human_bytes(pages.page_bytes), pages_text(pages),
             pages.readers.size() == 1 ? "process" : "processes", counted);
  if (fullest.huge_mapped_bytes > 0) {
    fmt::print("  in huge entries of the page table: {}\n", human_bytes(fullest.huge_mapped_bytes));
  }
  for (const collectors::LiveReader& reader : table.readers) {
    const LiveProcess& process = look.processes[reader.process];
    const LiveMapping& own = collectors::mapping_of(look.processes, reader);
    const bool known = process.rss_bytes.has_value();
    fmt::print("  {:>8}  at {:#x}  mapped {}  RSS {}  PSS {}  policy {}\n", process.pid, own.address,
               human_bytes(own.bytes), known ? human_bytes(own.rss_bytes + own.pool_bytes) : "unknown",
               known && own.pss_bytes ? human_bytes(*own.pss_bytes) : "unknown", policies_text(own));
  }
}

void print_look(const Observation& look) {
  if (!look.processes.empty()) print_processes(look);
  for (std::size_t i = 0; i < look.tables.size(); ++i) print_table(look, i);
  if (!look.findings.empty()) fmt::print("\nFindings\n");
  for (const collectors::LiveFinding& finding : look.findings) {
    fmt::print("  {}{}\n", finding.table >= 0 ? fmt::format("table {}: ", finding.table) : "", printable(finding.text));
  }
}

// ---- the command

// Says on stderr what could not be seen; each thing once, `said` holding what was said before.
void say_unread(const Observation& look, std::set<std::string>& said) {
  const auto say = [&](const std::string& text) {
    if (said.insert(text).second) fmt::print(stderr, "engram-bench: observe: {}\n", printable(text));
  };
  for (const LiveProcess& process : look.unobserved) say(process.text);
  for (const LiveProcess& process : look.processes) {
    for (const auto& [file, why] : process.unread) {
      say(fmt::format("/proc/{}/{}: {}; what stands there is left out", process.pid, file, why));
    }
  }
}

bool failed(const Observation& look) {
  return look.processes.empty() ||
         std::any_of(look.unobserved.begin(), look.unobserved.end(),
                     [](const LiveProcess& process) { return process.code != LookCode::no_tables; });
}

Observation look_once(const Options& options, const Globals& globals, const collectors::TableFilter& filter,
                      const collectors::LiveMachine& machine) {
  Observation look =
      collectors::observe(options.pids, filter, machine, collectors::nvml_device_users(collectors::nvml_state()));
  if (globals.json) {
    fmt::print("{}\n", collectors::observation_json(look, options.watch_s ? -1 : 2));
  } else {
    if (options.watch_s) fmt::print("== {}\n", look.time);
    print_look(look);
    if (options.watch_s) fmt::print("\n");
  }
  std::fflush(stdout);
  return look;
}

// Sleeps until `until_ns` or a signal, which it throws as Error(interrupted).
void sleep_until(std::int64_t until_ns) {
  for (std::int64_t left = until_ns - now_ns(); left > 0; left = until_ns - now_ns()) {
    pollfd wake{supervise::signal_fd(), POLLIN, 0};
    ::poll(&wake, 1, static_cast<int>(std::min<std::int64_t>(left / 1'000'000 + 1, 1'000'000)));
    supervise::check_interrupted();
  }
}

int watch(const Options& options, const Globals& globals, const collectors::TableFilter& filter,
          const collectors::LiveMachine& machine) {
  supervise::install_signal_handlers();
  const auto period_ns = static_cast<std::int64_t>(*options.watch_s * 1e9);
  bool seen = false;
  std::set<std::string> said;
  for (std::int64_t next = now_ns() + period_ns;; next += period_ns) {
    const Observation look = look_once(options, globals, filter, machine);
    say_unread(look, said);
    seen = seen || !look.processes.empty();
    const bool over = std::all_of(look.unobserved.begin(), look.unobserved.end(), [](const LiveProcess& process) {
      return process.code == LookCode::gone || process.code == LookCode::no_memory;
    });
    // What was watched has ended, or never was.
    if (look.processes.empty() && (over || !seen)) return static_cast<int>(seen ? Exit::ok : Exit::failure);
    next = std::max(next, now_ns());  // a look that takes longer than the period is followed by the next at once
    sleep_until(next);
  }
}

int show(const Options& options, const Globals& globals) {
  if (options.watch_s && !(*options.watch_s > 0 && *options.watch_s < 1e6)) {
    fail(Exit::usage, "observe: --watch {}: give seconds above 0 and below a million", *options.watch_s);
  }
  const collectors::TableFilter filter = filter_of(options);
  for (const int pid : options.pids) {
    if (pid < 1) fail(Exit::usage, "observe: --pid {}: process ids are 1 and above", pid);
  }
  const collectors::LiveMachine machine = collectors::read_live_machine();
  if (options.watch_s) return watch(options, globals, filter, machine);
  const Observation look = look_once(options, globals, filter, machine);
  std::set<std::string> said;
  say_unread(look, said);
  return static_cast<int>(failed(look) ? Exit::failure : Exit::ok);
}

}  // namespace

void add_observe(CLI::App& app, const Globals& globals, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("observe", "Show the tables of running processes: pages, policy, devices");
  command->add_option("--pid", options->pids, "A process to look at; several may be given")
      ->required()
      ->type_name("PID")
      ->expected(1, -1);
  command->add_option("--match", options->match, "Take mappings whose file this expression is found in for tables too")
      ->type_name("REGEX");
  command
      ->add_option("--min-size", options->min_size,
                   "Take mappings of this size and above for tables too (512M, 1G); with --match, of those it finds")
      ->type_name("SIZE");
  command->add_option("--watch", options->watch_s, "Look again every so many seconds, until the processes end")
      ->type_name("SECONDS");
  command->callback([options, &globals, &action] {
    // A process given twice is one process.
    std::vector<int> once;
    for (const int pid : options->pids) {
      if (std::find(once.begin(), once.end(), pid) == once.end()) once.push_back(pid);
    }
    options->pids = once;
    action = [options, &globals] { return show(*options, globals); };
  });
}

}  // namespace eb::cli
