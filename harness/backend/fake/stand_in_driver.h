// A driver whose memory is memfds, bound to their NUMA node where the machine has it: storage.backing cuda-host-numa on
// the fake backend, and a test's way to make any call fail.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "harness/backend/numa/driver_memory.h"
#include "harness/base/unique_fd.h"

namespace eb::backend::fake {

class StandInDriver final : public DriverMemory {
 public:
  static constexpr std::size_t kGranularity = std::size_t{2} << 20;

  // The n-th call (from 0) of `call` ("create", "map", ...) fails with `error`.
  void fail_at(const std::string& call, int n, int error) { faults_[{call, n}] = error; }
  // Of allocations and mappings that were not given back.
  [[nodiscard]] std::size_t live_handles() const noexcept { return memory_.size(); }
  [[nodiscard]] std::size_t live_bytes() const noexcept { return mapped_bytes_; }
  [[nodiscard]] std::size_t reserved_bytes() const noexcept { return reserved_bytes_; }
  [[nodiscard]] std::size_t device_bytes() const noexcept { return device_bytes_; }

  int granularity(int node, std::size_t* bytes) override;
  int create(int node, std::size_t bytes, Handle* handle) override;
  int export_descriptor(Handle handle, int* fd) override;
  int import_descriptor(int fd, Handle* handle) override;
  int release(Handle handle) override;
  int reserve(std::size_t bytes, std::byte** address) override;
  int free_reserved(std::byte* address, std::size_t bytes) override;
  int map(std::byte* address, std::size_t bytes, Handle handle) override;
  int unmap(std::byte* address, std::size_t bytes) override;
  int allow_host(std::byte* address, std::size_t bytes, int node) override;
  int allow_device(std::byte* address, std::size_t bytes) override;
  [[nodiscard]] std::string what(int error) override;

 private:
  [[nodiscard]] int planted(const std::string& call);

  std::map<std::pair<std::string, int>, int> faults_;
  std::map<std::string, int> calls_;
  std::map<Handle, UniqueFd> memory_;
  Handle next_ = 1;
  std::size_t mapped_bytes_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::size_t device_bytes_ = 0;
};

}  // namespace eb::backend::fake
