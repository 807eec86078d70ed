// Owner of a memory mapping.
#pragma once

#include <cstddef>
#include <utility>

namespace eb {

// Unmaps on destruction. Moves, never copies. `address` is page aligned.
class Mapping {
 public:
  Mapping() = default;
  // Takes over [address, address + bytes), which came from mmap.
  Mapping(void* address, std::size_t bytes) noexcept : address_(address), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        owned_(std::exchange(other.owned_, true)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  // The same range, of which somebody else stays the owner (a driver) and outlives this.
  static Mapping view(void* address, std::size_t bytes) noexcept {
    Mapping mapping(address, bytes);
    mapping.owned_ = false;
    return mapping;
  }
  // MAP_SHARED over the whole of `fd`, readable and writable. Errors: Error(failure) with `what` and the errno's text.
  static Mapping shared(int fd, std::size_t bytes, const char* what);
  // MAP_PRIVATE | MAP_ANONYMOUS, nothing faulted. Errors as above.
  static Mapping anonymous(std::size_t bytes, const char* what);

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(address_); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] explicit operator bool() const noexcept { return address_ != nullptr; }
  void reset() noexcept;

 private:
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
  bool owned_ = true;
};

}  // namespace eb
