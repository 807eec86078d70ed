#include "harness/backend/numa/numa_memory.h"

#include <algorithm>
#include <numeric>

#include "harness/base/error.h"

namespace eb::backend {

std::size_t total_bytes(std::span<const NumaPiece> pieces) noexcept {
  std::size_t sum = 0;
  for (const NumaPiece& piece : pieces) sum += piece.bytes;
  return sum;
}

std::vector<NumaPiece> plan_numa_pieces(std::size_t bytes, std::size_t granularity,
                                        std::span<const std::pair<int, int>> node_weights) {
  const std::size_t nodes = node_weights.size();
  if (nodes == 0 || nodes > kMostNumaPieces) {
    fail(Exit::usage, "cuda-host-numa: {} NUMA nodes, from 1 to {} are possible", nodes, kMostNumaPieces);
  }
  int common = 0;
  for (const auto& [node, weight] : node_weights) {
    if (weight < 1) fail(Exit::usage, "cuda-host-numa: NUMA node {} has weight {}, at least 1 is needed", node, weight);
    common = std::gcd(common, weight);
  }
  std::size_t turn_granules = 0;
  for (const auto& [node, weight] : node_weights) turn_granules += static_cast<std::size_t>(weight / common);
  const std::size_t granules = (bytes + granularity - 1) / granularity;
  const std::size_t units = std::max<std::size_t>(1, (granules + turn_granules - 1) / turn_granules);
  const std::size_t turns = std::min(units, std::max<std::size_t>(1, kMostNumaPieces / nodes));
  std::vector<NumaPiece> pieces;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const std::size_t long_turn = (turn + 1) * units / turns - turn * units / turns;
    for (const auto& [node, weight] : node_weights) {
      pieces.push_back({node, long_turn * static_cast<std::size_t>(weight / common) * granularity});
    }
  }
  return pieces;
}

NumaMemory::NumaMemory(DriverMemory& driver, std::vector<NumaPiece> pieces)
    : driver_(driver), pieces_(std::move(pieces)), bytes_(total_bytes(pieces_)) {
  handles_.reserve(pieces_.size());
}

NumaMemory::~NumaMemory() {
  unmap();
  for (const DriverMemory::Handle handle : handles_) static_cast<void>(driver_.release(handle));
}

std::string NumaMemory::text(std::size_t piece) const {
  return fmt::format("piece {} of {} ({} bytes on NUMA node {})", piece, pieces_.size(), pieces_[piece].bytes,
                     pieces_[piece].node);
}

void NumaMemory::check(int error, const std::string& what) const {
  if (error != 0) fail(Exit::failure, "cuda-host-numa: {}: {}", what, driver_.what(error));
}

std::unique_ptr<NumaMemory> NumaMemory::create(DriverMemory& driver, std::vector<NumaPiece> pieces) {
  std::unique_ptr<NumaMemory> memory(new NumaMemory(driver, std::move(pieces)));
  for (std::size_t i = 0; i < memory->pieces_.size(); ++i) {
    DriverMemory::Handle handle = 0;
    const NumaPiece& piece = memory->pieces_[i];
    memory->check(driver.create(piece.node, piece.bytes, &handle), "allocate " + memory->text(i));
    memory->handles_.push_back(handle);
  }
  return memory;
}

std::unique_ptr<NumaMemory> NumaMemory::import(DriverMemory& driver, std::vector<NumaPiece> pieces,
                                               std::span<const UniqueFd> fds) {
  if (fds.size() != pieces.size() || pieces.empty()) {
    fail(Exit::failure, "cuda-host-numa: {} descriptors came for {} pieces", fds.size(), pieces.size());
  }
  std::unique_ptr<NumaMemory> memory(new NumaMemory(driver, std::move(pieces)));
  for (std::size_t i = 0; i < fds.size(); ++i) {
    DriverMemory::Handle handle = 0;
    memory->check(driver.import_descriptor(fds[i].get(), &handle), "import the descriptor of " + memory->text(i));
    memory->handles_.push_back(handle);
  }
  return memory;
}

std::vector<UniqueFd> NumaMemory::export_descriptors() const {
  std::vector<UniqueFd> fds;
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    int fd = -1;
    check(driver_.export_descriptor(handles_[i], &fd), "export the descriptor of " + text(i));
    fds.emplace_back(fd);
  }
  return fds;
}

void NumaMemory::map() {
  if (address_ != nullptr) return;
  check(driver_.reserve(bytes_, &address_), fmt::format("reserve {} bytes of address space", bytes_));
  try {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const NumaPiece& piece = pieces_[i];
      check(driver_.map(address_ + offset, piece.bytes, handles_[i]), "map " + text(i));
      mapped_ = i + 1;
      check(driver_.allow_host(address_ + offset, piece.bytes, piece.node), "let the host use " + text(i));
      offset += piece.bytes;
    }
  } catch (...) {
    unmap();
    throw;
  }
}

void NumaMemory::allow_device() {
  if (address_ == nullptr) fail(Exit::failure, "cuda-host-numa: the device is let at memory that is not mapped");
  std::size_t offset = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    check(driver_.allow_device(address_ + offset, pieces_[i].bytes), "let the device use " + text(i));
    offset += pieces_[i].bytes;
  }
}

void NumaMemory::unmap() noexcept {
  if (address_ == nullptr) return;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < mapped_; ++i) {
    static_cast<void>(driver_.unmap(address_ + offset, pieces_[i].bytes));
    offset += pieces_[i].bytes;
  }
  mapped_ = 0;
  static_cast<void>(driver_.free_reserved(address_, bytes_));
  address_ = nullptr;
}

}  // namespace eb::backend
