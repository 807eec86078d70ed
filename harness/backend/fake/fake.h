// The fake backend: real data, virtual time. Every operation runs when it is called, on the calling thread, with the
// CPU kernels, so that results are right; its times come from a script, so that tests know them to the nanosecond.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/fake/graph.h"

namespace eb::backend::fake {

// The virtual clock of every rank starts here.
inline constexpr std::int64_t kStartNs = 1'000'000'000;

// A planned fault. A collective still sends to its peers when it is skipped or late: only its own result is missing.
// `op` is an operation's name ("lookup"), or name and layer ("lookup.l14"); it hits the `nth` call
// that matches, counted from 1, or every one where `nth` is 0.
struct Fault {
  enum class Kind {
    skip,  // the work is left out; its time passes
    late,  // the work is done when the host next waits: after whatever should have read it; its times are unchanged
    fail,  // the work is left out; `text` surfaces from the next host_wait() or synchronize()
  };
  std::string op;
  std::int64_t nth = 1;
  Kind kind = Kind::skip;
  std::string text = "scripted failure";
};

struct Script {
  // Duration of an operation by name, or by name and layer, which wins. busy() lasts as long as its argument says
  // where it has no entry.
  std::map<std::string, std::int64_t> duration_ns;
  std::int64_t default_duration_ns = 10'000;
  std::int64_t host_cost_ns = 100;  // the host's virtual clock advances by this before each record, wait or operation
  std::vector<Fault> faults;
};

struct FakeOptions {
  int units = 1;  // stands for the SMs; changes no time
  int numa_node = -1;
  Arena arena;
  std::vector<GroupSpec> groups;  // as in CpuOptions
  int rank = 0;
  std::atomic<std::uint32_t>* waiting = nullptr;
  Script script;
  bool record_graph = false;  // keeps a node for every call: for tests, not for long runs
};

// Time model. A stream is free from the end of its last operation. An operation starts when its stream is free and the
// host has called it, and lasts as scripted; streams do not slow each other down. A record has its stream's time, not
// before the call; a wait lifts its stream's time to the event's. A collective starts for each member as any operation
// does and ends at the last member's start plus its own scripted duration. Host waits lift the host's clock.
//
// Limits that come with running at the call: a wait for an event that was never recorded is an Error, and a collective
// blocks the caller until its peers make the same call, so ranks must be processes or threads of their own, and must
// call the collectives of different groups in a compatible order. Deterministic: the same program with the same script
// gives the same times always.
class FakeBackend : public Backend {
 public:
  [[nodiscard]] virtual const DependencyGraph& graph() const noexcept = 0;
  virtual void clear_graph() = 0;  // after synchronize(); later nodes do not refer to earlier ones
  // The host's virtual clock, and a way to let host time pass (a slow host).
  [[nodiscard]] virtual std::int64_t host_now_ns() const noexcept = 0;
  virtual void advance_host(std::int64_t duration_ns) = 0;
};

// Errors: Error(failure) as make_cpu_backend, and for a script with a name that is no operation or a negative duration.
[[nodiscard]] std::unique_ptr<FakeBackend> make_fake_backend(const FakeOptions& options);

// "lookup.l14", or "lookup" without a layer: the names that scripts and graphs use.
[[nodiscard]] std::string script_name(Op op);

}  // namespace eb::backend::fake
