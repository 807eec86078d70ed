#include "harness/rank/tables/table_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "harness/engram/content.h"
#include "harness/rank/tables/checkpoint.h"

namespace eb::rank {

namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;
constexpr std::int64_t kPieceBytes =
    4 << 20;  // of one task of a writing thread: large enough for pread, small to share

// The byte-wise rules of the synthetic content on eight bytes at once. Words are stored little-endian, as x86-64 does.
std::uint64_t without_nan(std::uint64_t word) noexcept {
  constexpr std::uint64_t kLow7 = 0x7F7F7F7F7F7F7F7FULL;
  constexpr std::uint64_t kOnes = 0x0101010101010101ULL;
  return word ^ ((((word & kLow7) + kOnes) >> 7) & kOnes);  // the sum carries into bit 7 only from 0x7F
}

std::uint64_t tame_bf16(std::uint64_t word) noexcept {
  for (int piece = 0; piece < 64; piece += 16) {
    const std::uint64_t field = (word >> (piece + 7)) & 0xFFU;
    word = (word & ~(std::uint64_t{0xFF} << (piece + 7))) | ((120 + field % 14) << (piece + 7));
  }
  return word;
}

std::uint64_t scale_bytes_of(std::uint64_t word) noexcept {
  std::uint64_t out = 0;
  for (int b = 0; b < 64; b += 8) out |= (120 + ((word >> b) & 0xFFU) % 14) << b;
  return out;
}

class SyntheticSource : public TableSource {
 public:
  SyntheticSource(const engram::Geometry& geometry, std::uint64_t seed)
      : geometry_(geometry),
        seed_(engram::splitmix64(seed)),
        weight_words_(static_cast<std::uint64_t>(geometry.row_weight_bytes()) / 8),
        scale_bytes_(static_cast<std::uint64_t>(geometry.row_scale_bytes())) {}

  void fill(std::size_t layer_index, std::int64_t first, std::int64_t count, const RowTarget& target) const override {
    const std::uint64_t row_words = weight_words_ + (scale_bytes_ + 7) / 8;
    std::uint64_t base = seed_ + static_cast<std::uint64_t>(geometry_.layers.at(layer_index).layer) * kGolden +
                         static_cast<std::uint64_t>(first) * row_words;
    const bool bf16 = geometry_.model.format == engram::RowFormat::bf16;
    for (std::int64_t i = 0; i < count; ++i, base += row_words) {
      std::byte* weights = target.weights + i * target.weight_stride;
      if (bf16) {
        words(base, weights, tame_bf16);
      } else {
        words(base, weights, without_nan);
      }
      std::byte* scales = target.scales + i * target.scale_stride;
      for (std::uint64_t b = 0; b < scale_bytes_; b += 8) {
        const std::uint64_t word = scale_bytes_of(engram::splitmix64(base + weight_words_ + b / 8));
        std::memcpy(scales + b, &word, std::min<std::uint64_t>(8, scale_bytes_ - b));
      }
    }
  }

 private:
  template <typename Rule>
  void words(std::uint64_t base, std::byte* out, Rule rule) const noexcept {
    for (std::uint64_t w = 0; w < weight_words_; ++w) {
      // splitmix64, in line: a call a word would be most of the time.
      std::uint64_t x = base + w + kGolden;
      x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
      x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
      const std::uint64_t word = rule(x ^ (x >> 31));
      std::memcpy(out + w * 8, &word, 8);
    }
  }

  const engram::Geometry& geometry_;
  std::uint64_t seed_;
  std::uint64_t weight_words_;
  std::uint64_t scale_bytes_;
};

class CheckpointSource : public TableSource {
 public:
  CheckpointSource(const engram::Geometry& geometry, const std::string& folder)
      : checkpoint_(folder, geometry),
        weight_bytes_(geometry.row_weight_bytes()),
        scale_bytes_(geometry.row_scale_bytes()) {}

  void fill(std::size_t layer_index, std::int64_t first, std::int64_t count, const RowTarget& target) const override {
    part(count, weight_bytes_, target.weights, target.weight_stride,
         [&](std::span<std::uint8_t> out) { checkpoint_.row_weights(layer_index, first, out); });
    part(count, scale_bytes_, target.scales, target.scale_stride,
         [&](std::span<std::uint8_t> out) { checkpoint_.row_scales(layer_index, first, out); });
  }

 private:
  // Straight into the mapping where rows are dense there, else through a buffer.
  template <typename Read>
  static void part(std::int64_t count, std::int64_t row_bytes, std::byte* out, std::int64_t stride, Read read) {
    if (row_bytes == 0) return;
    const auto bytes = static_cast<std::size_t>(count * row_bytes);
    if (stride == row_bytes) {
      read(std::span(reinterpret_cast<std::uint8_t*>(out), bytes));
      return;
    }
    std::vector<std::uint8_t> buffer(bytes);
    read(std::span(buffer));
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(out + i * stride, buffer.data() + i * row_bytes, static_cast<std::size_t>(row_bytes));
    }
  }

  Checkpoint checkpoint_;
  std::int64_t weight_bytes_;
  std::int64_t scale_bytes_;
};

// A piece of work of one thread: rows of a layer, or bytes to zero.
struct Task {
  std::size_t layer_index = 0;
  std::int64_t first = 0;  // row of the shard
  std::int64_t count = 0;
  std::int64_t zero_begin = 0;
  std::int64_t zero_bytes = 0;
};

std::vector<Task> plan_tasks(const engram::Geometry& geometry, const engram::Shard& shard, plan::Layout layout,
                             const plan::BackingLayout& places) {
  std::vector<Task> tasks;
  std::int64_t end = 0;  // of what is written so far
  const auto zero_up_to = [&](std::int64_t begin) {
    if (begin > end) tasks.push_back({0, 0, 0, end, begin - end});
  };
  for (std::size_t i = 0; i < places.layers.size(); ++i) {
    const plan::TablePlace& place = places.layers[i];
    const std::int64_t rows = shard.rows[i].count;
    const std::int64_t step = std::max<std::int64_t>(1, kPieceBytes / geometry.row_stride(layout));
    for (std::int64_t first = 0; first < rows; first += step) {
      tasks.push_back({i, first, std::min(step, rows - first), 0, 0});
    }
    zero_up_to(place.weights_offset);
    end = place.weights_offset + rows * place.weight_stride;
    if (layout == plan::Layout::split && place.scale_stride > 0) {
      zero_up_to(place.scales_offset);
      end = place.scales_offset + rows * place.scale_stride;
    }
  }
  zero_up_to(places.bytes);
  return tasks;
}

}  // namespace

std::unique_ptr<TableSource> make_synthetic_source(const engram::Geometry& geometry, std::uint64_t seed) {
  return std::make_unique<SyntheticSource>(geometry, seed);
}

std::unique_ptr<TableSource> make_checkpoint_source(const engram::Geometry& geometry, const std::string& folder) {
  return std::make_unique<CheckpointSource>(geometry, folder);
}

std::unique_ptr<TableSource> make_table_source(const plan::Scenario& scenario, const engram::Geometry& geometry) {
  if (scenario.storage.checkpoint.empty()) return make_synthetic_source(geometry, scenario.seed);
  return make_checkpoint_source(geometry, scenario.storage.checkpoint);
}

void write_tables(const TableSource& source, const engram::Geometry& geometry, const engram::Shard& shard,
                  plan::Layout layout, const plan::BackingLayout& places, std::byte* memory, int threads,
                  const LoadProgress& progress) {
  const std::vector<Task> tasks = plan_tasks(geometry, shard, layout, places);
  const std::int64_t used = geometry.row_weight_bytes() + geometry.row_scale_bytes();
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto run_task = [&](const Task& task) {
    if (task.zero_bytes > 0) {
      std::memset(memory + task.zero_begin, 0, static_cast<std::size_t>(task.zero_bytes));
      return;
    }
    const plan::TablePlace& place = places.layers[task.layer_index];
    RowTarget target{memory + place.weights_offset + task.first * place.weight_stride, place.weight_stride,
                     memory + place.scales_offset + task.first * place.scale_stride, place.scale_stride};
    source.fill(task.layer_index, shard.rows[task.layer_index].first + task.first, task.count, target);
    if (layout == plan::Layout::interleaved) {
      for (std::int64_t i = 0; i < task.count; ++i) {
        std::memset(target.weights + i * place.weight_stride + used, 0,
                    static_cast<std::size_t>(place.weight_stride - used));
      }
    }
  };
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < tasks.size(); i = next++) {
        run_task(tasks[i]);
        if (progress) progress();
      }
    } catch (...) {
      next = tasks.size();  // the others stop at their next piece
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  };
  const std::size_t count =
      std::clamp<std::size_t>(static_cast<std::size_t>(threads), 1, std::max<std::size_t>(1, tasks.size()));
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < count; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  if (error) std::rethrow_exception(error);
}

}  // namespace eb::rank
