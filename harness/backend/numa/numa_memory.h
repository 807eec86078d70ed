// storage.backing cuda-host-numa: host memory in pieces, each on a NUMA node of choice, that the leader allocates and
// every reader maps side by side in one range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "harness/backend/numa/driver_memory.h"
#include "harness/base/unique_fd.h"

namespace eb::backend {

// What travels with each descriptor: the other process cannot ask a descriptor for its size.
struct NumaPiece {
  int node = 0;
  std::size_t bytes = 0;
  friend bool operator==(const NumaPiece&, const NumaPiece&) = default;
};

// How many pieces a backing has at most; each is a descriptor of one message.
inline constexpr std::size_t kMostNumaPieces = 64;

// Pieces for `bytes` over the nodes in proportion to their weights, exactly: every turn over the nodes has each node's
// weight in units of whole granules, and there are as many turns as kMostNumaPieces allows, so that each table is
// spread as the whole is. Bytes are rounded up to whole turns: by less than granularity * sum(weights). Errors:
// Error(usage) for no nodes, a weight below 1, more nodes than pieces.
[[nodiscard]] std::vector<NumaPiece> plan_numa_pieces(std::size_t bytes, std::size_t granularity,
                                                      std::span<const std::pair<int, int>> node_weights);
[[nodiscard]] std::size_t total_bytes(std::span<const NumaPiece> pieces) noexcept;

// Owns allocations, mappings and address space, and gives them back in that order's reverse. One thread.
class NumaMemory {
 public:
  // Leader: allocates all pieces. Errors: Error(failure) that names the piece, its node and size and the driver's
  // error; what was allocated before is given back.
  static std::unique_ptr<NumaMemory> create(DriverMemory& driver, std::vector<NumaPiece> pieces);
  // Reader: takes over what `fds` lead to. Errors: as above, and Error(failure) where descriptors and pieces do not
  // agree in number.
  static std::unique_ptr<NumaMemory> import(DriverMemory& driver, std::vector<NumaPiece> pieces,
                                            std::span<const UniqueFd> fds);
  ~NumaMemory();
  NumaMemory(const NumaMemory&) = delete;
  NumaMemory& operator=(const NumaMemory&) = delete;

  // New descriptors, one a piece, in order. Errors: Error(failure).
  [[nodiscard]] std::vector<UniqueFd> export_descriptors() const;
  // Maps all pieces in order and lets the host use them. Errors: Error(failure); nothing stays mapped.
  void map();
  // Lets the device read and write what map() mapped. Errors: Error(failure).
  void allow_device();

  [[nodiscard]] std::byte* data() const noexcept { return address_; }  // null before map()
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] const std::vector<NumaPiece>& pieces() const noexcept { return pieces_; }

 private:
  NumaMemory(DriverMemory& driver, std::vector<NumaPiece> pieces);
  void check(int error, const std::string& what) const;
  [[nodiscard]] std::string text(std::size_t piece) const;
  void unmap() noexcept;

  DriverMemory& driver_;
  std::vector<NumaPiece> pieces_;
  std::size_t bytes_ = 0;
  std::vector<DriverMemory::Handle> handles_;  // of the first pieces; all, once complete
  std::byte* address_ = nullptr;
  std::size_t mapped_ = 0;  // so many pieces from the front
};

}  // namespace eb::backend
