// Rows of the key table: where the tables lie and when they are read (storage, prefetch).
#include <tuple>

#include "harness/plan/key_rows.h"
#include "harness/plan/paths.h"

namespace eb::plan {

namespace {

StorageSpec& storage(Target& t) { return t.scenario->storage; }
PrefetchSpec& prefetch(Target& t) { return t.scenario->prefetch; }

std::string pretouch_text(const StorageSpec& spec) {
  if (spec.pretouch != PretouchKind::parallel || spec.pretouch_threads == 0) return name(spec.pretouch);
  return "parallel:" + std::to_string(spec.pretouch_threads);
}

void add_place_rows(std::vector<Key>& rows) {
  rows.push_back(enum_key(
      "storage.backing", backings(), "shm",
      "Memory of the tables. Shared: shm (a file in /dev/shm), memfd, hugetlb-2m, hugetlb-1g, "
      "shm-thp. Private: anon, anon-thp. cuda-host-numa: device-mapped host memory on a NUMA node. "
      "Bounds, for controls: hbm (device memory), stub (no lookup at all).",
      [](Target & t) -> auto& { return storage(t).backing; }));
  rows.push_back(enum_key(
      "storage.layout", layouts(), "split",
      "split: all weights, then all scales, as in the checkpoint. interleaved: a row's scales "
      "behind its weights, stride rounded up to 16 bytes.",
      [](Target & t) -> auto& { return storage(t).layout; }));
  rows.push_back(form_key(
      "storage.policy", "bind:0",
      "none, stock, bind:N[,M], preferred:N, interleave:N,M, interleave:all, weighted:0=3,1=1 or consumer",
      "^(none|stock|consumer|bind:[0-9,-]+|preferred:[0-9]+|interleave:(all|[0-9,-]+)|weighted:[0-9=,]+)$",
      "NUMA policy of the tables, set before any page is touched. stock: as vLLM does it, with a named file, no "
      "policy, "
      "no pre-touch and no barrier before registration. weighted: exact shares, by segments. consumer: each TP shard "
      "on "
      "the node where the devices of all its readers are, else an error. Node lists use numactl's syntax.",
      [](Target& t, const std::string& text) { storage(t).policy = parse_policy(text); },
      [](Target& t) { return storage(t).policy.text; }));
  rows.push_back(enum_key(
      "storage.copies", copies_kinds(), "one",
      "One copy of a shard, or one on each NUMA node where a reader's device is: bound to that node, in place of the "
      "policy, and read by that node's readers.",
      [](Target & t) -> auto& { return storage(t).copies; }));
  rows.push_back(enum_key(
      "storage.pinned_rounding", pinned_roundings(), "none",
      "power-of-two: each array of private tables (anon, anon-thp) takes the next power of two of bytes, as pinned "
      "memory from a caching allocator does; all of it is allocated, pre-touched and registered.",
      [](Target & t) -> auto& { return storage(t).pinned_rounding; }));
}

// A node or a list is kept as the text that says the same: plan.json knows one form.
Key bind_ranks_key() {
  Key key = form_key(
      "storage.bind_ranks", "none",
      "none, device-local, or NUMA nodes: 0, [0, 1], \"0,1\" or \"0-3\", each from 0 to 1023 and named once",
      "^(none|device-local|[0-9,-]+)$",
      "CPUs and memory of the ranks: unchanged, those of the device's NUMA node, or those of the listed nodes in turn.",
      [](Target& t, const std::string& text) {
        if (text != "none" && text != "device-local") static_cast<void>(nodes_as_written(text));
        storage(t).bind_ranks = text;
      },
      [](Target& t) { return storage(t).bind_ranks; });
  key.type = Type::nodes;
  key.low = 0;
  key.high = kMaxNode;
  key.set = [take_text = key.set](Target& target, const Json& value) {
    if (value.is_string()) return take_text(target, value);
    std::vector<std::int64_t> nodes;  // 1.0 is an integer as well
    for (const Json& node : value.is_array() ? value : Json::array({value})) {
      nodes.push_back(static_cast<std::int64_t>(node.get<double>()));
    }
    take_text(target, fmt::format("{}", fmt::join(nodes, ",")));
  };
  return key;
}

void add_life_cycle_rows(std::vector<Key>& rows) {
  rows.push_back(form_key(
      "storage.pretouch", "leader", "none, leader, parallel or parallel:threads", "^(none|leader|parallel(:[0-9]+)?)$",
      "Who faults the pages in before registration: nobody, the leader, or threads of the leader (without a number: "
      "all "
      "CPUs it may use). Where policy becomes stock and this is not stated beside it: none.",
      [](Target& t, const std::string& text) {
        std::tie(storage(t).pretouch, storage(t).pretouch_threads) = parse_pretouch(text);
      },
      [](Target& t) { return pretouch_text(storage(t)); }));
  rows.push_back(enum_key(
      "storage.register", register_orders(), "concurrent",
      "Order in which the ranks register a mapping with their device.",
      [](Target & t) -> auto& { return storage(t).register_order; }));
  rows.push_back(bind_ranks_key());
  Key checkpoint = text_key(
      "storage.checkpoint", Json(),
      "Folder of safetensors files that the tables are loaded from; null: synthetic content "
      "made from the seed.",
      [](Target & t) -> auto& { return storage(t).checkpoint; });
  checkpoint.nullable = true;
  checkpoint.path_value = true;
  checkpoint.set = [](Target& t, const Json& value) {
    storage(t).checkpoint = value.is_null() ? std::string() : resolve_path(t, value.get<std::string>());
  };
  checkpoint.get = [](Target& t) { return storage(t).checkpoint.empty() ? Json() : Json(storage(t).checkpoint); };
  rows.push_back(checkpoint);
  rows.push_back(number_key(
      "storage.tolerance", 0, 1, 0.01, "Share of pages that may lie elsewhere than asked before the run fails.",
      [](Target & t) -> auto& { return storage(t).tolerance; }));
}

void add_prefetch_rows(std::vector<Key>& rows) {
  rows.push_back(enum_key(
      "prefetch.submit", submits(), "early",
      "early: every lookup is enqueued before the first backbone layer. at_consume: the same "
      "lookup is held back until the main stream reaches its consumer.",
      [](Target & t) -> auto& { return prefetch(t).submit; }));
  rows.push_back(enum_key(
      "prefetch.streams", streams(), "fifo",
      "fifo: one prefetch stream with an event a layer. per_layer: a stream for each layer.",
      [](Target & t) -> auto& { return prefetch(t).streams; }));
  Key cap;
  cap.path = "prefetch.grid_cap";
  cap.type = Type::number_or_text;
  cap.fallback = "half";
  cap.number_low = 0;
  cap.number_high = 1e6;
  cap.low_excluded = true;
  cap.values = {"half", "all"};
  cap.unit = "programs";
  cap.form = "a number of programs, a fraction of the device's units below 1 (0.25), half or all";
  cap.doc =
      "Largest grid of a background lookup. It limits programs and reserves nothing; it changes nothing while the "
      "tiles fit into it.";
  cap.set = [](Target& t, const Json& value) {
    prefetch(t).grid_cap =
        value.is_string() ? parse_grid_cap(value.get<std::string>()) : grid_cap_of(value.get<double>());
  };
  cap.get = [](Target& t) {
    const GridCap& grid = prefetch(t).grid_cap;
    if (grid.text == "half" || grid.text == "all") return Json(grid.text);
    return grid.kind == GridCap::Kind::programs ? Json(static_cast<std::int64_t>(grid.value)) : Json(grid.value);
  };
  rows.push_back(cap);
  rows.push_back(enum_key(
      "prefetch.order", orders(), "token", "Order of the rows in a lookup: as hashed, or sorted.",
      [](Target & t) -> auto& { return prefetch(t).order; }));
  Key graph = text_key(
      "prefetch.graph", "off", "Device graphs: off, or the pieces between lookups (CUDA).",
      [](Target & t) -> auto& { return prefetch(t).graph; });
  graph.values = {"off", "piecewise"};
  rows.push_back(graph);
}

}  // namespace

void add_storage_rows(std::vector<Key>& rows) {
  add_place_rows(rows);
  add_life_cycle_rows(rows);
  add_prefetch_rows(rows);
}

}  // namespace eb::plan
