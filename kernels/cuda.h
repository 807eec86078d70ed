// Launchers of the CUDA kernels; each is implemented in kernels/<name>.cu beside its CPU twin. All are asynchronous on
// `stream` and capturable into a graph. Errors: cudaError_t of the launch; arguments are not checked.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/gate.h"
#include "kernels/gather_rows.h"
#include "kernels/hash.h"
#include "kernels/lookup.h"
#include "kernels/select.h"

namespace eb::kernels {

// `layers` of HashArgs is a device pointer here.
cudaError_t hash_cuda(const HashArgs& args, cudaStream_t stream);

// A persistent grid of min(tiles, grid_cap) blocks, returned in *grid (may be null). `units`: null, or device memory in
// which each block adds one at its SM's number (modulo kUnitCounts): the same work by a kernel of its own, for looking
// on only.
inline constexpr std::size_t kUnitCounts = 1024;
// general: the kernel that does any table, so that layouts can be compared by one kernel (benchmarks).
enum class LookupShape { best, general };
cudaError_t lookup_cuda(const LookupArgs& args, std::int64_t grid_cap, cudaStream_t stream, std::int64_t* grid,
                        std::uint32_t* units = nullptr, LookupShape shape = LookupShape::best);

// As the lookup: a persistent grid of min(tiles, grid_cap) blocks, returned in *grid (may be null).
cudaError_t gather_rows_cuda(const GatherArgs& args, std::int64_t grid_cap, cudaStream_t stream, std::int64_t* grid);

// What the compiler and the device give the lookup kernel that `rows` rows would run.
struct LookupOccupancy {
  int threads = 0;
  int registers = 0;      // a thread
  int blocks_per_sm = 0;  // theoretical occupancy
};
cudaError_t lookup_occupancy(const LookupArgs& args, std::int64_t grid_cap, LookupOccupancy* result);

// Bytes of scratch memory that sort_rows_cuda needs for `rows` rows (0 where one block sorts them).
std::size_t sort_rows_scratch_bytes(std::int64_t rows);
// order[rows]: stable by id, rows without an id last; bit-equal to the CPU twin.
cudaError_t sort_rows_cuda(const LookupArgs& args, std::int32_t* order, std::byte* scratch, std::size_t scratch_bytes,
                           cudaStream_t stream);

cudaError_t select_cuda(const SelectArgs& args, cudaStream_t stream);
// One block that spins for about `duration_ns` on the device's clock: injected work.
cudaError_t busy_cuda(std::int64_t duration_ns, cudaStream_t stream);
cudaError_t gate_cuda(const GateArgs& args, cudaStream_t stream);

}  // namespace eb::kernels
