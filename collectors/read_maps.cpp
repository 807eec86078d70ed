#include "collectors/process_maps.h"
#include "harness/base/error.h"
#include "harness/base/os.h"

namespace eb::collectors {

RangeMaps read_range(std::uint64_t address, std::uint64_t bytes, const std::string& proc) {
  std::string reasons[2];
  const auto read = [&](const char* name, std::string& reason) {
    try {
      return read_file(proc + "/" + name);
    } catch (const Error& error) {
      reason = error.what();
      return std::string();
    }
  };
  const std::string numa = read("numa_maps", reasons[0]);
  const std::string smaps = read("smaps", reasons[1]);
  RangeMaps range = select_range(parse_numa_maps(numa, nullptr), parse_smaps(smaps, nullptr), address, bytes);
  range.numa_reason = reasons[0];
  range.smaps_reason = reasons[1];
  return range;
}

}  // namespace eb::collectors
