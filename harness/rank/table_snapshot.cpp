#include "harness/rank/table_snapshot.h"

#include "collectors/snapshot.h"

namespace eb::rank {

std::string table_snapshot(const RankContext& context, const TableStorage& storage, const std::string& label) {
  collectors::SnapshotInput input;
  input.label = label;
  input.address = storage.mapping().data();
  input.bytes = storage.mapping().size();
  input.backing_fd = storage.descriptor().get();
  input.backing_kind = plan::name(context.scenario.storage.backing);
  if (const backend::NumaMemory* made = storage.numa_memory()) {
    collectors::AllocationRecord record;
    record.identity =
        static_cast<std::uint64_t>(context.layout.ranks.at(static_cast<std::size_t>(context.rank)).backing);
    for (const backend::NumaPiece& piece : made->pieces()) record.pieces.push_back({piece.node, piece.bytes});
    input.allocation = std::move(record);
  }
  const plan::BackingLayout& places = storage.places();
  for (std::size_t i = 0; i < places.layers.size(); ++i) {
    input.tables.push_back({context.geometry.layers[i].layer,
                            static_cast<std::uint64_t>(places.layers[i].weights_offset),
                            static_cast<std::uint64_t>(places.layers[i].bytes)});
  }
  return collectors::rank_snapshot_json(input);
}

}  // namespace eb::rank
