// One rank's table mapping through its life: create -> map -> policy -> pre-touch -> register -> load -> ... -> unmap
// (docs/life-cycle.md). Each call is one stage; the supervisor's messages are the barriers between. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/backend/backend.h"
#include "harness/backend/numa/numa_memory.h"
#include "harness/base/mapping.h"
#include "harness/base/unique_fd.h"
#include "harness/engram/geometry.h"
#include "harness/plan/layout.h"
#include "harness/plan/scenario.h"
#include "kernels/lookup.h"
#include "placement/policy.h"

namespace eb::rank {

// How a backing comes to its readers.
enum class Sharing {
  none,        // stub: no tables at all
  private_,    // anonymous memory of one rank
  descriptor,  // a descriptor passed by the supervisor
  named,       // policy stock: a name in /dev/shm that every reader opens
  pieces,      // cuda-host-numa: made by the driver in pieces, a descriptor each
  device,      // hbm: each reader has its own, in its device's memory
};
// Whether the tables have pages of this machine's memory, which a policy places and a snapshot finds.
[[nodiscard]] constexpr bool in_host_memory(Sharing sharing) noexcept {
  return sharing != Sharing::none && sharing != Sharing::device;
}
// Whether a policy holds for the mapping that it was set on alone, although the memory is shared: hugetlb files keep no
// policy of their own, so every reader has to set it. (tmpfs does keep one: there the leader sets it for all.)
[[nodiscard]] constexpr bool policy_of_each_mapping(plan::Backing backing) noexcept {
  return backing == plan::Backing::hugetlb_2m || backing == plan::Backing::hugetlb_1g;
}
// Errors: Error(usage) for a combination that is not built (stock on a backing without a name).
[[nodiscard]] Sharing sharing_of(const plan::StorageSpec& storage);

class TableStorage {
 public:
  // All references must outlive the object.
  TableStorage(const plan::Scenario& scenario, const plan::RunLayout& layout, const engram::Geometry& geometry,
               int rank);
  TableStorage(const TableStorage&) = delete;
  TableStorage& operator=(const TableStorage&) = delete;

  [[nodiscard]] bool leader() const noexcept { return place_.backing_leader; }
  [[nodiscard]] Sharing sharing() const noexcept { return sharing_; }

  // Leader of a shared backing: creates it, sized, nothing allocated. The descriptor stays this object's.
  // `named`: also returns the path in `path`. Errors: Error(failure).
  int create(std::string* path);
  // Leader, Sharing::pieces: allocates them on the nodes that the policy names and returns a descriptor of each.
  std::vector<UniqueFd> create_pieces(backend::Backend& backend);
  // Sharing::pieces: maps them; the leader its own, everybody else what `fds` lead to.
  void map_pieces(backend::Backend& backend, std::vector<backend::NumaPiece> pieces, std::span<const UniqueFd> fds);
  // Maps the backing: `fd` of a shared one (the leader may be given its own again), nothing for a private one.
  void map(UniqueFd fd);
  // stock: the leader maps what it created, everybody else opens `path`.
  void open_named(const std::string& path);
  // Leader (hugetlb: every reader): reads what apply_policy() needs of the machine, so that the stage's time has none
  // of it.
  void prepare_policy();
  // Sets what prepare_policy() found on the object (or on the private memory), before any touch. Errors: as
  // placement::apply().
  void apply_policy();
  // The policy was refused: from here on the pages may lie anywhere.
  void drop_policy() noexcept { segments_.clear(); }
  // Leader: pre-touches as storage.pretouch says. `progress` is called now and then.
  void pretouch(const std::function<void()>& progress);
  void register_with(backend::Backend& backend);
  // Leader: writes every byte. `progress` as LoadProgress.
  void load(const std::function<void()>& progress);
  // Leader: SHA-256 over the SHA-256 of each piece of the whole backing, pad bytes included: equal for equal content.
  [[nodiscard]] std::string content_sha256(const std::function<void()>& progress) const;
  // A planted fault: one byte of the tables is no longer what was loaded.
  void corrupt() noexcept;
  void unregister() noexcept {
    registration_.reset();
    device_.reset();
  }
  void unmap() noexcept;

  // Of each layer, device addresses. Empty for a stub.
  [[nodiscard]] std::vector<kernels::TableView> views() const;
  [[nodiscard]] const Mapping& mapping() const noexcept { return mapping_; }
  [[nodiscard]] const plan::BackingLayout& places() const noexcept { return places_; }
  [[nodiscard]] const UniqueFd& descriptor() const noexcept { return fd_; }  // of a shared backing
  // Sharing::pieces: what was allocated; null before.
  [[nodiscard]] const backend::NumaMemory* numa_memory() const noexcept { return numa_.get(); }

 private:
  // What a policy can tell apart: a page, or the huge page that the backing is to be made of.
  [[nodiscard]] std::size_t unit() const noexcept {
    return static_cast<std::size_t>(plan::unit_bytes(scenario_.storage.backing));
  }
  void touch(std::size_t offset, std::size_t bytes, const std::function<void()>& progress);
  void write_to(std::byte* memory, const std::function<void()>& progress) const;
  void load_device(const std::function<void()>& progress);

  const plan::Scenario& scenario_;
  const engram::Geometry& geometry_;
  plan::RankPlace place_;
  Sharing sharing_;
  plan::BackingLayout places_;
  UniqueFd fd_;
  std::unique_ptr<backend::NumaMemory> numa_;
  Mapping mapping_;                                      // a view of numa_'s range, where there is one
  plan::Policy policy_;                                  // of this backing
  std::optional<placement::EffectivePolicy> effective_;  // leaders, where a policy is set
  std::vector<placement::Segment> segments_;             // bound and touched one by one; empty: all at once
  std::unique_ptr<backend::Registration> registration_;  // released before the mapping it covers
  backend::Backend* backend_ = nullptr;                  // Sharing::device: whose memory the tables lie in
  std::unique_ptr<backend::Buffer> device_;
};

// CPUs this process may use: threads for pre-touch and load.
[[nodiscard]] int allowed_cpu_count() noexcept;

}  // namespace eb::rank
