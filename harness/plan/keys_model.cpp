// Rows of the key table: what runs (top level, model, parallel, device).
#include <cctype>

#include "harness/plan/key_rows.h"

namespace eb::plan {

namespace {

constexpr std::int64_t kMaxInt32 = 2147483647;

void set_backbone_preset(Target& target, const Json& value) {
  Backbone& backbone = target.scenario->model.backbone;
  backbone = Backbone{};
  if (value.is_null()) return;
  backbone.preset = value.get<std::string>();
  // 16 G active parameters over 40 layers: 0.4 G of one byte, two FLOPs a parameter and token.
  backbone.layers = 40;
  backbone.weight_bytes_per_layer = 400'000'000;
  backbone.flops_per_token_per_layer = 800'000'000;
}

void add_top_rows(std::vector<Key>& rows) {
  Key name = text_key(
      "name", Json(), "Name of the scenario; names the result.", [](Target & t) -> auto& { return t.scenario->name; });
  name.required = true;
  name.form = "1 to 100 letters, digits, dots, hyphens and underscores, a letter or digit first";
  name.pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$";
  name.set = [](Target& t, const Json& value) {
    t.scenario->name = value.get<std::string>();
    if (!is_name(t.scenario->name, 100) || std::isalnum(static_cast<unsigned char>(t.scenario->name[0])) == 0) {
      fail(Exit::usage, "expected 1 to 100 letters, digits, dots, hyphens and underscores, a letter or digit first");
    }
  };
  rows.push_back(name);
  rows.push_back(text_key(
      "question", "", "The question that the run answers, in a sentence.",
      [](Target & t) -> auto& { return t.scenario->question; }));
  rows.push_back(integer_key(
      "seed", 0, std::numeric_limits<std::int64_t>::max(), 1,
      "Seed of the synthetic content, the token streams and the order of blocks.",
      [](Target & t) -> auto& { return t.scenario->seed; }));
}

void add_geometry_rows(std::vector<Key>& rows) {
  Key preset = text_key(
      "model.preset", "deepseek-v4.1-flash",
      "Geometry of the Engram tables; each key below that is given is laid over it.",
      [](Target & t) -> auto& { return t.scenario->model.base.preset; });
  preset.values = engram::preset_names();
  preset.set = [](Target& t, const Json& value) { t.scenario->model.base = engram::preset(value.get<std::string>()); };
  rows.push_back(preset);
  Key scale = number_key(
      "model.table_scale", 0, 16, 1.0,
      "Scales the start of the prime search, at least to 64, so that a scaled table keeps its "
      "structure.",
      [](Target & t) -> auto& { return t.scenario->model.table_scale; });
  scale.low_excluded = true;
  rows.push_back(scale);
  const auto base = [](Target& t) -> engram::Model& { return t.scenario->model.base; };
  const auto add = [&](Key key) { rows.push_back(from_preset(std::move(key))); };
  add(integers_key(
      "model.layers", 0, 1023, 1, Json(),
      "Backbone layers (0-based, ascending) that have a table.", [base](Target & t) -> auto& {
        return base(t).layers;
      }));
  add(integers_key(
      "model.ngram_sizes", 2, engram::kMaxNgram, 1, Json(),
      "Sizes of the hashed n-grams, ascending.", [base](Target & t) -> auto& { return base(t).ngram_sizes; }));
  add(integer_key(
      "model.heads_per_ngram", 1, 64, Json(),
      "Hash heads of each n-gram size.", [base](Target & t) -> auto& { return base(t).heads_per_ngram; }));
  add(with_unit(integers_key(
                    "model.head_rows", 1, kMaxInt32, 0, Json(),
                    "Rows of each hash column of a layer, given outright; an empty list: from the prime "
                    "search.",
                    [base](Target & t) -> auto& { return base(t).head_rows; }),
                "rows"));
  add(integer_key(
      "model.prime_start", 0, kMaxInt32, Json(),
      "Start of the prime search, before model.table_scale; unused where head_rows are given.",
      [base](Target & t) -> auto& { return base(t).prime_start; }));
  add(with_unit(
      integer_key(
          "model.dim", 1, 65536, Json(), "Elements of a row.", [base](Target & t) -> auto& { return base(t).dim; }),
      "elements"));
  add(with_unit(integer_key(
                    "model.block", 0, 65536, Json(), "Elements that share one scale byte; 0 for bf16 rows.",
                    [base](Target & t) -> auto& { return base(t).block; }),
                "elements"));
  add(enum_key(
      "model.format", row_formats(), nullptr,
      "How a row is stored.", [base](Target & t) -> auto& { return base(t).format; }));
  add(integer_key(
      "model.compressed_vocab", 1, kMaxInt32, Json(),
      "Size of the compressed vocabulary, which the hash multipliers depend on.", [base](Target & t) -> auto& {
        return base(t).compressed_vocab;
      }));
  add(integer_key(
      "model.raw_vocab", 1, kMaxInt32, Json(),
      "Size of the tokenizer's vocabulary.", [base](Target & t) -> auto& { return base(t).raw_vocab; }));
  add(integer_key(
      "model.pad_token", 0, kMaxInt32, Json(),
      "Raw id of the pad token, hashed where a look-back ends.", [base](Target & t) -> auto& {
        return base(t).pad_token;
      }));
  add(with_unit(integer_key(
                    "model.hidden_size", 1, 65536, Json(),
                    "Width of the hidden state.", [base](Target & t) -> auto& { return base(t).hidden; }),
                "elements"));
  add(integer_key(
      "model.hc_mult", 1, 64, Json(),
      "Copies of the hidden state that the gate writes.", [base](Target & t) -> auto& { return base(t).hc_mult; }));
  Key eps = number_key(
      "model.rms_eps", 0, 1, Json(),
      "Added to the mean square in the gate's normalisation.", [base](Target & t) -> auto& { return base(t).rms_eps; });
  eps.low_excluded = true;
  add(eps);
}

void add_backbone_rows(std::vector<Key>& rows) {
  const auto backbone = [](Target& t) -> Backbone& { return t.scenario->model.backbone; };
  Key preset = text_key(
      "model.backbone.preset", "gemm-v4.1-flash",
      "Stand-in for the layers around Engram: two matrix products a layer with the stated weight "
      "bytes. gemm-v4.1-flash: 40 layers, each 0.4 G parameters of one byte and 0.8 GFLOP a token, "
      "divided by TP; it stands for 16 G active parameters and is no model. null: none of it.",
      [backbone](Target & t) -> auto& { return backbone(t).preset; });
  preset.values = {"gemm-v4.1-flash"};
  preset.nullable = true;
  preset.set = set_backbone_preset;
  preset.get = [backbone](Target& t) { return backbone(t).preset.empty() ? Json() : Json(backbone(t).preset); };
  rows.push_back(preset);
  const auto add = [&](Key key, const char* unit) { rows.push_back(from_preset(with_unit(std::move(key), unit))); };
  add(integer_key(
          "model.backbone.layers", 1, 1024, Json(), "Backbone layers; more than the last Engram layer.",
          [backbone](Target & t) -> auto& { return backbone(t).layers; }),
      "");
  add(integer_key(
          "model.backbone.weight_bytes_per_layer", 0, 1'000'000'000'000, Json(),
          "Weights that a layer reads, one byte a parameter, before scale and TP.",
          [backbone](Target & t) -> auto& { return backbone(t).weight_bytes_per_layer; }),
      "bytes");
  add(integer_key(
          "model.backbone.flops_per_token_per_layer", 0, 1'000'000'000'000'000, Json(),
          "Arithmetic of a layer for one token, before scale and TP.",
          [backbone](Target & t) -> auto& { return backbone(t).flops_per_token_per_layer; }),
      "FLOP");
  add(integer_key(
          "model.backbone.expert_bytes_per_token", 0, 1'000'000'000, Json(),
          "Bytes a token that the all-to-all over the EP ranks carries in each layer where parallel.ep > 1.",
          [backbone](Target & t) -> auto& { return backbone(t).expert_bytes_per_token; }),
      "bytes");
  Key scale = number_key(
      "model.backbone.scale", 0, 1000, 1.0,
      "Scales weights and arithmetic of every backbone layer.", [backbone](Target & t) -> auto& {
        return backbone(t).scale;
      });
  scale.low_excluded = true;
  rows.push_back(scale);
}

void add_parallel_rows(std::vector<Key>& rows) {
  const auto parallel = [](Target& t) -> ParallelSpec& { return t.scenario->parallel; };
  rows.push_back(integer_key(
      "parallel.tp", 1, 64, 2,
      "Ranks of a replica (tensor parallel).", [parallel](Target & t) -> auto& { return parallel(t).tp; }));
  rows.push_back(integer_key(
      "parallel.dp", 1, 64, 2,
      "Replicas (data parallel).", [parallel](Target & t) -> auto& { return parallel(t).dp; }));
  rows.push_back(integer_key(
      "parallel.ep", 1, 64, 1,
      "Consecutive replicas that an all-to-all couples in each layer (expert parallel); divides "
      "parallel.dp. 1: the replicas are uncoupled, and the result says so.",
      [parallel](Target & t) -> auto& { return parallel(t).ep; }));
  rows.push_back(boolean_key(
      "parallel.sequence_parallel", false,
      "Each rank takes its window of tokens with all heads, instead of all tokens.", [parallel](Target & t) -> auto& {
        return parallel(t).sequence_parallel;
      }));
  rows.push_back(enum_key(
      "parallel.table_mode", table_modes(), "shared",
      "shared: one copy of the tables a host. private: one a replica. dp_sharded: hash heads over "
      "TP x EDP.",
      [parallel](Target & t) -> auto& { return parallel(t).table_mode; }));
}

void add_device_rows(std::vector<Key>& rows) {
  const auto device = [](Target& t) -> DeviceSpec& { return t.scenario->device; };
  rows.push_back(enum_key(
      "device.backend", backend_kinds(), "auto",
      "What runs the step: cpu (threads), cuda, or fake (virtual time, for tests). auto: cuda where this build and "
      "this "
      "machine have it, else cpu.",
      [device](Target & t) -> auto& { return device(t).backend; }));
  Key map;
  map.path = "device.rank_map";
  map.type = Type::text_or_integers;
  map.fallback = "default";
  map.values = {"default", "shard-near"};
  map.low = 0;
  map.high = 1023;
  map.doc = "Device of each rank: default, a list of devices, or shard-near (readers of one shard on one NUMA node).";
  map.set = [device](Target& t, const Json& value) {
    DeviceSpec& spec = device(t);
    spec.rank_map = value.is_string() ? value.get<std::string>() : "list";
    spec.rank_devices = value.is_array() ? value.get<std::vector<int>>() : std::vector<int>{};
  };
  map.get = [device](Target& t) {
    return device(t).rank_devices.empty() ? Json(device(t).rank_map) : Json(device(t).rank_devices);
  };
  rows.push_back(map);
  rows.push_back(integer_key(
      "device.cpu_workers", 1, 1024, 1,
      "CPU backend: programs of a grid that run at once; stands for the SM count.", [device](Target & t) -> auto& {
        return device(t).cpu_workers;
      }));
  Key durations;
  durations.path = "device.fake_durations_us";
  durations.type = Type::number_map;
  durations.fallback = Json::object();
  durations.number_low = 0;
  durations.number_high = 1e9;
  durations.unit = "us";
  durations.doc =
      "Fake backend: duration of an operation by its name (lookup) or name and layer (lookup.l14); else 10 us.";
  durations.set = [device](Target& t, const Json& value) {
    device(t).fake_durations_us = value.get<std::map<std::string, double>>();
  };
  durations.get = [device](Target& t) {
    Json map_json = Json::object();
    for (const auto& [op, us] : device(t).fake_durations_us) map_json[op] = us;
    return map_json;
  };
  rows.push_back(durations);
  rows.push_back(number_key(
      "device.fake_noise", 0, 1, 0.0,
      "Fake backend: standard deviation of the logarithm of the durations in device.fake_durations_us from one re-roll "
      "to the next, drawn from the seed. Arms that share a re-roll share its draw.",
      [device](Target & t) -> auto& { return device(t).fake_noise; }));
}

}  // namespace

void add_model_rows(std::vector<Key>& rows) {
  add_top_rows(rows);
  add_geometry_rows(rows);
  add_backbone_rows(rows);
  add_parallel_rows(rows);
  add_device_rows(rows);
}

}  // namespace eb::plan
