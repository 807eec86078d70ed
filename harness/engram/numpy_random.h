// NumPy's seeding, generator and bounded integers, reproduced bit for bit: the hash multipliers of a model are defined
// by `numpy.random.default_rng(seed).integers(0, high, size)`. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace eb::engram {

// numpy.random.SeedSequence(seed) with its default pool of four words and no spawn key.
// Source: NumPy, numpy/random/bit_generator.pyx; M. O'Neill, "Developing a seed_seq Alternative".
class SeedSequence {
 public:
  explicit SeedSequence(std::uint64_t seed) noexcept;
  // generate_state(4, uint64): what a PCG64 is seeded with.
  [[nodiscard]] std::array<std::uint64_t, 4> state() const noexcept;

 private:
  std::array<std::uint32_t, 4> pool_{};
};

// numpy.random.Generator(PCG64(seed)): a 128-bit linear congruential state with the XSL-RR output. One object serves
// one thread.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(std::uint64_t seed) noexcept;

  [[nodiscard]] std::uint64_t next_u64() noexcept;
  // Halves of a 64-bit draw, the low one first; the high one is kept for the next call.
  [[nodiscard]] std::uint32_t next_u32() noexcept;
  // integers(0, high), dtype int64: Lemire's method without bias, on 32-bit draws where high <= 2^32 as NumPy does.
  // high >= 1.
  [[nodiscard]] std::int64_t below(std::int64_t high) noexcept;

 private:
  __extension__ using Wide = unsigned __int128;
  void step() noexcept;

  Wide state_ = 0;
  Wide increment_ = 0;
  bool has_half_ = false;
  std::uint32_t half_ = 0;
};

}  // namespace eb::engram
