#include "harness/rank/step/step_facts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace eb::rank {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kSector = 32;

std::int64_t count_unique(std::vector<std::int64_t>& values) {
  std::sort(values.begin(), values.end());
  return std::unique(values.begin(), values.end()) - values.begin();
}

// Units of `unit` bytes that [offset, offset + bytes) touches.
void touch(std::vector<std::int64_t>& units, std::int64_t offset, std::int64_t bytes, std::int64_t unit) {
  for (std::int64_t i = offset / unit; bytes > 0 && i <= (offset + bytes - 1) / unit; ++i) units.push_back(i);
}

ordered_json lookups(const StepShape& shape, const engram::Geometry& geometry, const SlotTotals& totals,
                     const StepCounts& counts, std::span<const Reuse> reuse,
                     std::span<const std::optional<backend::LookupResources>> resources) {
  ordered_json list = ordered_json::array();
  if (shape.stub) return list;
  const std::int64_t row_bytes = geometry.row_weight_bytes() + geometry.row_scale_bytes();
  for (std::size_t table = 0; table < counts.lookups.size(); ++table) {
    const LookupCounts& lookup = counts.lookups[table];
    list.push_back({{"layer", geometry.layers[table].layer},
                    {"rows", lookup.rows},
                    {"rows_per_step_max", lookup.rows_per_step_max},
                    {"tiles_max", lookup.tiles_max},
                    {"grid_max", lookup.grid_max},
                    {"grid_cap", totals.grid_cap},
                    {"rows_last_step", reuse[table].rows},
                    {"unique_rows_last_step", reuse[table].unique_rows},
                    {"unique_pages_last_step", reuse[table].unique_pages},
                    {"unique_sectors_last_step", reuse[table].unique_sectors},
                    {"source_bytes", totals.group_tokens * shape.shard_columns * row_bytes},
                    {"staging_bytes", lookup.rows * shape.dim * 2}});
    if (const auto& locality = reuse[table].locality) {
      // Of all steps of a timed slot, added up over the slots.
      list.back()["located_rows"] = locality->located_rows;
      list.back()["local_rows"] = locality->local_rows;
      list.back()["unlocated_rows"] = locality->unlocated_rows;
    }
    if (table >= resources.size() || !resources[table]) continue;
    const backend::LookupResources& found = *resources[table];
    list.back()["threads_per_program_max"] = found.threads;
    list.back()["registers_per_thread_max"] = found.registers;
    list.back()["programs_per_unit_max"] = found.programs_per_unit;
    // Of the unit's threads, by the compiler's and the device's limits.
    list.back()["occupancy_last_step"] =
        static_cast<double>(found.programs_per_unit * found.threads) / static_cast<double>(found.unit_threads);
  }
  return list;
}

ordered_json text_or_null(const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); }

ordered_json device_facts(const backend::DeviceInfo& device) {
  return {{"backend", device.backend},
          {"name", device.name},
          {"units", device.units},
          {"numa_node", device.numa_node < 0 ? ordered_json() : ordered_json(device.numa_node)},
          {"memory_bytes", device.memory_bytes == 0 ? ordered_json() : ordered_json(device.memory_bytes)},
          {"uuid", text_or_null(device.uuid)},
          {"bus_id", text_or_null(device.bus_id)},
          {"cuda_driver", text_or_null(device.cuda_driver)},
          {"cuda_runtime", text_or_null(device.cuda_runtime)},
          {"nccl", text_or_null(device.nccl)},
          {"host_staged", device.host_staged},
          {"time_sliced", device.time_sliced},
          {"emulated_time", device.emulated_time},
          {"clock_error_ns", device.clock_error_ns}};
}

ordered_json collectives(const StepCounts& counts) {
  ordered_json list = ordered_json::array();
  for (const auto& [key, count] : counts.collectives) {
    const auto& [object, group, layer] = key;
    list.push_back(
        {{"object", object}, {"group", group}, {"layer", layer}, {"calls", count.calls}, {"bytes", count.bytes}});
  }
  return list;
}

void add_checks(ordered_json& facts, const CheckFacts& checks) {
  ordered_json out;
  out["ids"] = {{"compared", checks.ids_compared}, {"mismatches", 0}};  // a mismatch has ended the slot
  out["rows"] = nullptr;
  if (checks.rows_compared) out["rows"] = {{"compared", *checks.rows_compared}, {"mismatches", 0}};
  out["hidden"] = nullptr;
  if (checks.hidden)
    out["hidden"] = {{"tokens", checks.hidden->tokens}, {"max_error", checks.hidden->max_error}, {"bound", 1.0}};
  facts["checks"] = out;
  facts["digests"] = {{"ids", checks.ids_sha256}, {"rows", nullptr}, {"hidden", checks.hidden_sha256}};
  if (checks.rows_compared) facts["digests"]["rows"] = checks.rows_sha256;
}

}  // namespace

Reuse count_reuse(const engram::Geometry& geometry, const engram::Shard& shard, plan::Layout layout,
                  std::span<const std::int32_t> ids, int table) {
  const auto place = static_cast<std::size_t>(table);
  const plan::TablePlace at = plan::make_backing_layout(geometry, shard, layout).layers[place];
  const engram::RowRange range = shard.rows[place];
  const std::size_t id_row = geometry.layers.size() * static_cast<std::size_t>(geometry.columns);
  const std::size_t first =
      place * static_cast<std::size_t>(geometry.columns) + static_cast<std::size_t>(shard.first_column);
  Reuse reuse;
  std::vector<std::int64_t> rows;
  for (std::size_t token = 0; token + id_row <= ids.size(); token += id_row)
    for (std::size_t column = 0; column < static_cast<std::size_t>(shard.columns); ++column) {
      const std::int64_t row = ids[token + first + column] - range.first;
      if (row >= 0 && row < range.count) rows.push_back(row);
    }
  reuse.rows = static_cast<std::int64_t>(rows.size());
  reuse.unique_rows = count_unique(rows);
  rows.resize(static_cast<std::size_t>(reuse.unique_rows));
  std::vector<std::int64_t> pages;
  std::vector<std::int64_t> sectors;
  for (const std::int64_t row : rows) {
    const std::int64_t weights = at.weights_offset + row * at.weight_stride;
    const std::int64_t scales = at.scales_offset + row * at.scale_stride;
    touch(pages, weights, geometry.row_weight_bytes(), kPage);
    touch(pages, scales, geometry.row_scale_bytes(), kPage);
    touch(sectors, weights, geometry.row_weight_bytes(), kSector);
    touch(sectors, scales, geometry.row_scale_bytes(), kSector);
  }
  reuse.unique_pages = count_unique(pages);
  reuse.unique_sectors = count_unique(sectors);
  return reuse;
}

std::string facts_json(const StepShape& shape, const engram::Geometry& geometry, const SlotTotals& totals,
                       const StepCounts& counts, std::span<const Reuse> reuse,
                       std::span<const std::optional<backend::LookupResources>> resources,
                       const backend::DeviceInfo& device, const std::optional<CheckFacts>& checks,
                       const WindowFacts* window) {
  ordered_json facts;
  facts["steps"] = totals.steps;
  facts["own_tokens"] = totals.own_tokens;
  facts["common_slot_tokens"] = totals.slot_tokens;
  facts["padded_share"] = nullptr;  // no tokens at all: no share
  if (totals.slot_tokens > 0)
    facts["padded_share"] = 1.0 - static_cast<double>(totals.own_tokens) / static_cast<double>(totals.slot_tokens);
  // Replicas that exchange something in every step cannot drift apart.
  facts["replicas_uncoupled"] = totals.steps > 0 && shape.replicas > 1 && shape.ep == 1 && !shape.dp_sharded;
  facts["stub"] = shape.stub;
  facts["lookups"] = lookups(shape, geometry, totals, counts, reuse, resources);
  ordered_json units = ordered_json::array();
  for (const auto& [layer, count] : totals.host.lookup_units) units.push_back({{"layer", layer}, {"units", count}});
  facts["lookup_units"] = std::move(units);
  facts["collectives"] = collectives(counts);
  facts["setup_collectives"] = ordered_json::array();  // the step runner makes none
  if (window == nullptr) {
    facts["backbone"] = {{"layers", shape.backbone_layers},
                         {"inner_width", shape.backbone_n},
                         {"repeats", shape.backbone_repeats},
                         {"flops_per_token_per_layer", 4 * shape.backbone_n * shape.hidden * shape.backbone_repeats}};
    facts["wkv_dtype"] = "bf16";
  } else {
    facts["window"] = {{"reads", window->reads},
                       {"kernel", window->bare ? "gather_rows" : "lookup"},
                       {"launches", window->launches},
                       {"short_windows", window->short_windows}};
  }
  facts["instrument"] = totals.instrument;
  if (checks) add_checks(facts, *checks);
  facts["threads"] = totals.threads;
  const HostWork& host = totals.host;
  facts["host"] = {{"enqueue_ns", host.enqueue_ns},
                   {"wall_ns", host.wall_ns},
                   {"launches", host.launches ? ordered_json(*host.launches) : ordered_json()}};
  facts["device"] = device_facts(device);
  return facts.dump();
}

}  // namespace eb::rank
