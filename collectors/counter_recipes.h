// Which hardware events count memory, socket-link and PCIe traffic on which CPU: data files
// (collectors/recipes/*.json), carried inside the program. Parsing and encoding; opens nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace eb::collectors {

struct CpuModel {
  std::string vendor;  // "GenuineIntel", "AuthenticAMD"
  int family = -1;
  int model = -1;
};
// Of the first CPU in the text of /proc/cpuinfo; empty vendor where it states none (other architectures).
[[nodiscard]] CpuModel parse_cpuinfo(std::string_view text);
// "AuthenticAMD family 25 model 17".
[[nodiscard]] std::string text(const CpuModel& cpu);

// Fields of an event by the names that the kernel's format files give them: event, umask, ch_mask, ...
using EventFields = std::map<std::string, std::uint64_t>;

struct CounterRecipe {
  std::string name;       // "memory_read_bytes"
  std::string object;     // memory_controller, socket_link, io_stack
  std::string direction;  // read, write (of memory), both, sent, received (by the socket)
  std::string units;      // expression for the names of the kernel's PMUs, matched as a whole: "uncore_imc_[0-9]+"
  std::vector<EventFields> events;  // counts of all are added up
  double bytes_per_count = 0;
  std::string source;
};

struct AbsentCounter {  // what this CPU has no known event for
  std::string name;
  std::string object;
  std::string direction;
  std::string reason;
};

struct CpuRecipe {
  std::string file;  // "intel-sapphire-rapids"
  std::string title;
  std::vector<CounterRecipe> counters;
  std::vector<AbsentCounter> absent;
};

// Errors: Error(failure) that names the file and what is wrong with it. nullopt: it is of another CPU.
[[nodiscard]] std::optional<CpuRecipe> parse_recipe(std::string_view file, std::string_view json, const CpuModel& cpu);
// The recipe of this program for a CPU; nullopt: none.
[[nodiscard]] std::optional<CpuRecipe> recipe_for(const CpuModel& cpu);

// Where a field lies: the kernel's "config:0-7,32-35", or "config1:8". Bits fill the ranges from the lowest on.
struct FieldBits {
  int word = 0;  // 0: config, 1: config1, 2: config2
  std::vector<std::pair<int, int>> ranges;
};
// nullopt: of no such form.
[[nodiscard]] std::optional<FieldBits> parse_format(std::string_view text);
// Puts `value` where `bits` say into `words`. False: the value has more bits than the field.
[[nodiscard]] bool place(std::uint64_t value, const FieldBits& bits, std::uint64_t (&words)[3]);

}  // namespace eb::collectors
