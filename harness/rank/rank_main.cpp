#include "harness/rank/rank_main.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <optional>

#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"
#include "harness/rank/bind_process.h"
#include "harness/rank/tables/row_reference.h"
#include "placement/backing.h"

namespace eb::rank {

namespace {

using control::Stage;

// Counts of the whole process, so of all its threads.
struct Faults {
  std::int64_t minor = 0;
  std::int64_t major = 0;
};
Faults read_faults() noexcept {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {usage.ru_minflt, usage.ru_majflt};
}

class Rank {
 public:
  Rank(control::Channel& channel, const RankParts& parts) : channel_(channel), parts_(parts) {}

  // Empty: the supervisor said Stop; else the failure to report.
  std::optional<control::Failure> serve() {
    try {
      while (auto received = channel_.receive_to_rank()) {
        if (std::holds_alternative<control::Stop>(received->message)) return std::nullopt;
        std::visit([&](auto& message) { handle(message, received->fds); }, received->message);
      }
      return failure("the supervisor is gone", Exit::failure);
    } catch (const Error& error) {
      return failure(error.what(), error.exit());
    } catch (const std::bad_alloc&) {
      return failure("out of memory", Exit::failure);
    } catch (const std::exception& error) {
      return failure(error.what(), Exit::failure);
    }
  }

 private:
  control::Failure failure(const std::string& text, Exit exit) const {
    return {context_.rank, doing_, text, static_cast<int>(exit)};
  }

  void handle(const control::Setup& setup, std::vector<UniqueFd>& fds) {
    doing_ = "start";
    if (fds.size() != 2) fail(Exit::failure, "setup came with {} descriptors, not 2", fds.size());
    context_.rank = setup.rank;
    context_.numa_node = setup.numa_node;
    context_.device = setup.device;
    context_.instrument = setup.instrument;
    allow_degraded_ = setup.allow_degraded;
    std::vector<control::LostPart> lost = bind_process(setup.allowed_cpus, setup.memory_nodes);
    if (!lost.empty() && !allow_degraded_) {
      std::vector<std::string> texts;
      for (const control::LostPart& one : lost) texts.push_back(one.text);
      fail(Exit::failure, "binding_degraded: storage.bind_ranks: {}; --allow-degraded runs without it and says so",
           fmt::join(texts, "; "));
    }
    context_.scenario = plan::scenario_from_json(setup.scenario_json);
    context_.geometry = engram::make_geometry(context_.scenario.model.base, context_.scenario.model.table_scale);
    context_.layout = plan::make_layout(context_.scenario, context_.geometry);
    plan::place_backings(context_.layout, context_.scenario.storage, setup.rank_nodes);
    if (setup.arena_bytes > 0) arena_ = Mapping::shared(fds[0].get(), setup.arena_bytes, "arena");
    context_.arena = {arena_.data(), arena_.size()};
    const std::size_t ranks = context_.layout.ranks.size();
    progress_ = Mapping::shared(fds[1].get(), ranks * sizeof(control::RankProgress), "progress page");
    context_.progress = reinterpret_cast<control::RankProgress*>(progress_.data()) + setup.rank;
    storage_ = std::make_unique<TableStorage>(context_.scenario, context_.layout, context_.geometry, setup.rank);
    backend_ = parts_.make_backend(context_);
    tick();
    channel_.send(control::Ready{::getpid(), std::move(lost)});
  }

  void handle(const control::RunStage& message, std::vector<UniqueFd>& fds) {
    require_setup();
    doing_ = message.stage == Stage::stock_open ? "map" : control::name(message.stage);
    context_.progress->stage = static_cast<std::uint32_t>(message.stage) + 1;
    tick();
    control::StageDone done;
    std::vector<int> descriptors;
    if (message.stage == Stage::stock_open) {
      // Stock has no barrier between mapping and registration; the two are still timed apart.
      channel_.send(timed(Stage::map, [&] { map_named(message.path); }));
      doing_ = control::name(Stage::register_);
      channel_.send(timed(Stage::register_, [&] { register_tables(); }));
      done = timed(Stage::stock_open, [] {});
    } else {
      std::string note;
      if (message.stage == Stage::policy) storage_->prepare_policy();
      std::vector<UniqueFd> made;  // pieces' descriptors: the receivers have their own once the message is sent
      const bool pieces = storage_->sharing() == Sharing::pieces;
      if (pieces && message.stage == Stage::create) {
        done = timed(message.stage, [&] { made = storage_->create_pieces(*backend_); });
        for (const UniqueFd& fd : made) descriptors.push_back(fd.get());
        for (const backend::NumaPiece& piece : storage_->numa_memory()->pieces()) {
          done.pieces.push_back({piece.node, piece.bytes});
        }
      } else if (pieces && message.stage == Stage::map) {
        planted_fault(context_.scenario.fault, context_.rank, "before_map");
        done = timed(message.stage, [&] { storage_->map_pieces(*backend_, numa_pieces(message), fds); });
      } else {
        done = timed(message.stage, [&] {
          if (const int one = run(message.stage, fds, note); one >= 0) descriptors.push_back(one);
        });
        done.note = note;
      }
      tick();
      channel_.send(done, descriptors);
      return;
    }
    tick();
    channel_.send(done);
  }

  static std::vector<backend::NumaPiece> numa_pieces(const control::RunStage& message) {
    std::vector<backend::NumaPiece> pieces;
    for (const control::TablePiece& piece : message.pieces) {
      pieces.push_back({piece.node, static_cast<std::size_t>(piece.bytes)});
    }
    return pieces;
  }

  void handle(const control::Snapshot& message, std::vector<UniqueFd>&) {
    require_setup();
    doing_ = "snapshot " + message.label;
    tick();
    channel_.send(control::SnapshotDone{message.label, parts_.take_snapshot(context_, *storage_, message.label)});
  }

  void handle(const control::RunSlot& slot, std::vector<UniqueFd>&) {
    require_setup();
    doing_ = fmt::format("slot {}", slot.slot);
    if (!runner_) fail(Exit::failure, "a slot before the stage prepare");
    tick();
    const plan::Scenario arm = plan::scenario_from_json(slot.prefetch_json);
    const SlotResult result = runner_->run(slot, arm);
    control::SlotDone done{slot.slot, result.events.size(), result.facts_json, result.trace_json,
                           result.window_launches};
    const std::size_t bytes = result.events.size() * sizeof(EventRecord);
    const UniqueFd events = make_memfd("engram-bench events", std::max<std::size_t>(bytes, 1));
    if (bytes > 0) {
      const Mapping target = Mapping::shared(events.get(), bytes, "events");
      std::memcpy(target.data(), result.events.data(), bytes);
    }
    tick();
    channel_.send(done, std::array{events.get()});
  }

  void handle(const control::Stop&, std::vector<UniqueFd>&) {}

  // Returns the descriptor to pass on, or -1.
  int run(Stage stage, std::vector<UniqueFd>& fds, std::string& note) {
    switch (stage) {
      case Stage::create: {
        const int descriptor = storage_->create(&note);
        return storage_->sharing() == Sharing::descriptor ? descriptor : -1;  // a name travels in the note
      }
      case Stage::map:
        planted_fault(context_.scenario.fault, context_.rank, "before_map");
        storage_->map(fds.empty() ? UniqueFd() : std::move(fds[0]));
        return -1;
      case Stage::policy:
        note = apply_policy();
        return -1;
      case Stage::pretouch:
        storage_->pretouch([this] { tick(); });
        return -1;
      case Stage::register_:
        register_tables();
        return -1;
      case Stage::load:
        load();
        return -1;
      case Stage::digest:
        note = storage_->content_sha256([this] { tick(); });
        return -1;
      case Stage::prepare:
        prepare();
        return -1;
      case Stage::unregister:
        runner_.reset();
        storage_->unregister();
        return -1;
      case Stage::unmap:
        storage_->unmap();
        return -1;
      case Stage::stock_open:
        break;
    }
    fail(Exit::failure, "stage {} cannot run here", control::name(stage));
  }

  // Returns what was refused, where that is allowed; else nothing.
  std::string apply_policy() {
    try {
      storage_->apply_policy();
      return {};
    } catch (const placement::PolicyRefused& refused) {
      if (!allow_degraded_) throw;
      storage_->drop_policy();
      return refused.what();
    }
  }

  void map_named(const std::string& path) {
    planted_fault(context_.scenario.fault, context_.rank, "before_map");
    storage_->open_named(path);
  }

  void register_tables() {
    planted_fault(context_.scenario.fault, context_.rank, "before_register");
    storage_->register_with(*backend_);
  }

  void load() {
    storage_->load([this] {
      tick();
      planted_fault(context_.scenario.fault, context_.rank, "during_load");
    });
    const plan::Fault& fault = context_.scenario.fault;
    if (fault.kind == "corrupt" && fault.rank == context_.rank) storage_->corrupt();
  }

  void prepare() {
    reference_ = make_row_reference(context_.scenario, context_.geometry);
    runner_ = parts_.make_runner(context_, *backend_, *storage_, *reference_);
  }

  template <typename Work>
  control::StageDone timed(Stage stage, Work work) {
    control::StageDone done;
    done.stage = stage;
    done.allocated_before_bytes = allocated();
    const Faults before = read_faults();
    done.start_ns = now_ns();
    work();
    done.end_ns = now_ns();
    const Faults after = read_faults();
    done.minor_faults = after.minor - before.minor;
    done.major_faults = after.major - before.major;
    done.allocated_after_bytes = allocated();
    return done;
  }

  // Outside the stage's time.
  [[nodiscard]] std::int64_t allocated() const {
    const int fd = storage_ ? storage_->descriptor().get() : -1;
    return fd < 0 ? -1 : placement::backing_state(fd).allocated_bytes;
  }

  void require_setup() const {
    if (!storage_) fail(Exit::failure, "a message before Setup");
  }

  void tick() noexcept { context_.progress->ticks.fetch_add(1, std::memory_order_relaxed); }

  control::Channel& channel_;
  const RankParts& parts_;
  RankContext context_;
  bool allow_degraded_ = false;
  std::string doing_ = "start";
  Mapping arena_;
  Mapping progress_;
  // Destroyed in this order: runner, reference, tables (with their registration), backend.
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<TableStorage> storage_;
  std::unique_ptr<RowReference> reference_;
  std::unique_ptr<SlotRunner> runner_;
};

}  // namespace

int run_rank(control::Channel& channel, const RankParts& parts) {
  Rank rank(channel, parts);
  const auto failure = rank.serve();
  if (!failure) return 0;
  try {
    channel.send(*failure);
  } catch (const Error&) {
    // Nobody is left to hear it.
  }
  return failure->exit;
}

void planted_fault(const plan::Fault& fault, int rank, const char* where) {
  if (fault.kind == "none" || fault.rank != rank || fault.stage != where) return;
  if (fault.kind == "kill") ::raise(SIGKILL);
  if (fault.kind == "fail") fail(Exit::failure, "planted fault {}", where);
  if (fault.kind == "hang") {
    for (;;) ::pause();
  }
}

}  // namespace eb::rank
