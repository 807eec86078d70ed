// What a call costs the rank's host thread on CUDA: records, kernels, products, graphs. Prints ns a call, the median of
// rounds that each fit into a stream's queue, so that the host never waits for the device.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "harness/backend/cuda/cuda.h"
#include "harness/base/error.h"
#include "harness/base/os.h"

namespace {

using namespace eb;  // NOLINT(google-build-using-namespace): a program of one file

constexpr int kCalls = 200;
constexpr int kRounds = 21;
constexpr std::int64_t kHidden = 5120;
constexpr std::int64_t kInner = 39040;

double median_ns(backend::Backend& backend, const std::function<void()>& call) {
  call();  // modules and algorithms
  backend.synchronize();
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t begin = now_ns();
    for (int i = 0; i < kCalls; ++i) call();
    rounds.push_back(static_cast<double>(now_ns() - begin) / kCalls);
    backend.synchronize();
    backend.reset_events();
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

void report(const std::string& what, double ns) { fmt::print("{:<44}{:>9.0f} ns a call\n", what, ns); }

int run() {
  const auto backend = backend::cuda::make_backend({});
  const backend::StreamId stream = backend->create_stream("main");
  const auto device = [&](std::int64_t bytes) {
    return backend->allocate(static_cast<std::size_t>(bytes), backend::MemoryKind::device, "bench");
  };
  const auto small = device(1 << 20);
  const backend::Op copy{backend::OpKind::copy, -1};
  report("record of an event", median_ns(*backend, [&] { backend->record(stream, backend->new_event()); }));
  report("copy of 64 KiB",
         median_ns(*backend, [&] { backend->copy(stream, copy, small->data(), small->data() + 65536, 65536); }));
  kernels::SelectArgs select;
  select.src = small->data();
  select.dst = small->data() + 65536;
  select.token_stride = select.piece_bytes = select.dst_row_bytes = 64;
  select.tokens = select.valid_tokens = 16;
  report("select, a small kernel", median_ns(*backend, [&] { backend->select(stream, copy, select); }));

  const std::vector<Bf16> values(static_cast<std::size_t>(kHidden * kInner));
  const auto up = backend->upload_matrix(values, kInner, kHidden);
  const auto down = backend->upload_matrix(values, kHidden, kInner);
  const auto hidden = device(576 * kHidden * 2);
  const auto inner = device(576 * kInner * 2);
  for (const std::int64_t tokens : {1, 64, 576}) {
    const backend::LinearArgs first{hidden->as<Bf16>(), kHidden, up.get(), inner->as<Bf16>(), kInner, tokens, 0};
    const backend::LinearArgs second{inner->as<Bf16>(), kInner, down.get(), hidden->as<Bf16>(), kHidden, tokens, 0.1F};
    const backend::Op op{backend::OpKind::backbone, 0};
    report(fmt::format("product {} x {} x {}", tokens, kInner, kHidden),
           median_ns(*backend, [&] { backend->linear(stream, op, first); }));
    report(fmt::format("product {} x {} x {}, added", tokens, kHidden, kInner),
           median_ns(*backend, [&] { backend->linear(stream, op, second); }));
  }
  std::uint32_t shape = 0;
  for (const int operations : {2, 28}) {
    for (const int records : {0, 28}) {
      ++shape;
      report(fmt::format("graph of {} kernels and {} records", operations, records), median_ns(*backend, [&] {
               backend->begin_segment(stream, {shape, 0, 0});
               for (int i = 0; i < operations; ++i) backend->select(stream, copy, select);
               for (int i = 0; i < records; ++i) backend->record(stream, backend->new_event());
               backend->end_segment(stream);
             }));
    }
  }
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const eb::Error& error) {
    fmt::print(stderr, "launch_bench: {}\n", error.what());
    return static_cast<int>(error.exit());
  }
}
