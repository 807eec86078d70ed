#include "harness/backend/cpu/host_memory.h"

#include <algorithm>
#include <utility>

#include "harness/base/error.h"
#include "harness/base/mapping.h"
#include "harness/base/os.h"
#include "kernels/pretouch.h"

namespace eb::backend::cpu {

namespace {

class HostBuffer final : public Buffer {
 public:
  HostBuffer(std::size_t bytes, const char* what, Quiesce quiesce)
      : mapping_(Mapping::anonymous(std::max<std::size_t>(bytes, 1), what)),
        bytes_(bytes),
        quiesce_(std::move(quiesce)) {
    try {
      kernels::pretouch(mapping_.data(), mapping_.size(), 1);
    } catch (const Error& error) {
      fail(Exit::failure, "{}: buffer of {} bytes: {}", what, bytes, error.what());
    }
  }
  ~HostBuffer() override { quiesce_(); }
  [[nodiscard]] std::byte* data() const noexcept override { return mapping_.data(); }
  [[nodiscard]] std::size_t size() const noexcept override { return bytes_; }

 private:
  Mapping mapping_;
  std::size_t bytes_;
  Quiesce quiesce_;
};

class HostMatrix final : public Matrix {
 public:
  HostMatrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k, Quiesce quiesce)
      : matrix_(values, n, k), quiesce_(std::move(quiesce)) {}
  ~HostMatrix() override { quiesce_(); }
  [[nodiscard]] std::int64_t n() const noexcept override { return matrix_.n(); }
  [[nodiscard]] std::int64_t k() const noexcept override { return matrix_.k(); }
  [[nodiscard]] const FloatMatrix& floats() const noexcept { return matrix_; }

 private:
  FloatMatrix matrix_;
  Quiesce quiesce_;
};

class HostRegistration final : public Registration {
 public:
  HostRegistration(std::byte* address, std::size_t bytes, Quiesce quiesce)
      : address_(address), quiesce_(std::move(quiesce)) {
    kernels::pretouch(address, bytes, 1);
  }
  ~HostRegistration() override { quiesce_(); }
  [[nodiscard]] const std::byte* device_address() const noexcept override { return address_; }

 private:
  std::byte* address_;
  Quiesce quiesce_;
};

}  // namespace

std::unique_ptr<Buffer> make_host_buffer(std::size_t bytes, const char* what, Quiesce quiesce) {
  return std::make_unique<HostBuffer>(bytes, what, std::move(quiesce));
}

std::unique_ptr<Matrix> make_host_matrix(std::span<const Bf16> values, std::int64_t n, std::int64_t k,
                                         Quiesce quiesce) {
  return std::make_unique<HostMatrix>(values, n, k, std::move(quiesce));
}

const FloatMatrix& host_matrix(const Matrix* matrix) {
  const auto* own = dynamic_cast<const HostMatrix*>(matrix);
  if (own == nullptr) fail(Exit::failure, "linear: the matrix was not uploaded to this backend");
  return own->floats();
}

std::unique_ptr<Registration> make_host_registration(std::byte* address, std::size_t bytes, Quiesce quiesce) {
  return std::make_unique<HostRegistration>(address, bytes, std::move(quiesce));
}

}  // namespace eb::backend::cpu
