// SHA-256 (libcrypto) of bytes, as 64 lower-case hex digits.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace eb {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::string hex();  // ends the sum; call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] std::string sha256_hex(std::span<const std::byte> bytes);
// Errors: Error(failure) that names the path.
[[nodiscard]] std::string sha256_file(const std::string& path);

}  // namespace eb
