// A backend of which a test implements what it expects to be called; all else throws.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "harness/backend/backend.h"
#include "harness/base/error.h"

namespace eb::rank::test {

class UnusedBackend : public backend::Backend {
 public:
  const backend::DeviceInfo& device() const noexcept override { return info_; }
  std::unique_ptr<backend::Registration> register_table(std::byte*, std::size_t) override { unused(); }
  backend::StreamId create_stream(const std::string&) override { return unused(); }
  std::unique_ptr<backend::Buffer> allocate(std::size_t, backend::MemoryKind, const char*) override { unused(); }
  std::unique_ptr<backend::Matrix> upload_matrix(std::span<const Bf16>, std::int64_t, std::int64_t) override {
    unused();
  }
  std::unique_ptr<backend::Communicator> communicator(const backend::GroupSpec&) override { unused(); }
  backend::EventId new_event() override { return unused(); }
  void reset_events() override { unused(); }
  void record(backend::StreamId, backend::EventId) override { unused(); }
  void wait(backend::StreamId, backend::EventId) override { unused(); }
  void host_wait(backend::EventId) override { unused(); }
  void synchronize() override { unused(); }
  backend::EventTimes times(backend::EventId) const override { unused(); }
  void hash(backend::StreamId, backend::Op, const kernels::HashArgs&) override { unused(); }
  void sort_rows(backend::StreamId, backend::Op, const kernels::LookupArgs&, std::int32_t*) override { unused(); }
  std::int64_t lookup(backend::StreamId, backend::Op, const kernels::LookupArgs&, std::int64_t) override {
    return unused();
  }
  std::int64_t gather_rows(backend::StreamId, backend::Op, const kernels::GatherArgs&, std::int64_t) override {
    return unused();
  }
  void select(backend::StreamId, backend::Op, const kernels::SelectArgs&) override { unused(); }
  void gate(backend::StreamId, backend::Op, const kernels::GateArgs&) override { unused(); }
  void linear(backend::StreamId, backend::Op, const backend::LinearArgs&) override { unused(); }
  void copy(backend::StreamId, backend::Op, std::byte*, const std::byte*, std::size_t) override { unused(); }
  void fill(backend::StreamId, backend::Op, std::byte*, std::uint8_t, std::size_t) override { unused(); }
  void busy(backend::StreamId, backend::Op, std::int64_t) override { unused(); }

 protected:
  backend::DeviceInfo info_;

 private:
  [[noreturn]] static int unused() { fail(Exit::failure, "a call that this test does not expect"); }
};

}  // namespace eb::rank::test
