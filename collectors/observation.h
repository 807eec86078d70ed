// One look at running processes: their tables, and what strikes about them, as JSON (docs/observe.md,
// harness/result/schema/observation.schema.json).
#pragma once

#include <string>
#include <vector>

#include "collectors/live_process.h"
#include "collectors/live_tables.h"

namespace eb::collectors {

// This machine's nodes and THP settings.
[[nodiscard]] LiveMachine read_live_machine();

struct Observation {
  std::string time;  // UTC, ISO 8601
  LiveMachine machine;
  std::vector<LiveProcess> processes;   // that have tables, in the order given
  std::vector<LiveProcess> unobserved;  // gone, not permitted, without memory or tables
  std::vector<LiveTable> tables;
  std::vector<LiveFinding> findings;
};

// Looks at each process once. A process that cannot be looked at is in `unobserved`; never throws for one.
[[nodiscard]] Observation observe(const std::vector<int>& pids, const TableFilter& filter, const LiveMachine& machine,
                                  const DeviceUsers& users, const std::string& root = "");

// indent < 0: one line.
[[nodiscard]] std::string observation_json(const Observation& observation, int indent);

}  // namespace eb::collectors
