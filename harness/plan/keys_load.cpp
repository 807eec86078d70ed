// Rows of the key table: what is processed and how it is compared (workload, experiment, slo, fault).
#include "harness/plan/key_rows.h"
#include "harness/plan/paths.h"

namespace eb::plan {

namespace {

constexpr std::int64_t kMaxTokens =
    1'048'576;  // of one chunk: a token's place in its step must fit comfortably in int32

WorkloadSpec& workload(Target& t) { return t.scenario->workload; }
Batch& batch(Target& t) { return t.scenario->workload.batches[t.item]; }

void add_batch_rows(std::vector<Key>& rows) {
  Key list;
  list.path = "workload.batches";
  list.type = Type::objects;
  list.min_items = 1;
  list.fallback = Json::array({Json{{"prefill", Json::array({512})}, {"decode", 64}}});
  list.doc =
      "What one step processes. Step s of a replica takes entry s modulo the number of entries that are for every "
      "replica or for this one; a replica without entries is idle.";
  list.set = [](Target& t, const Json& value) { workload(t).batches.assign(value.size(), Batch{}); };
  rows.push_back(list);
  rows.push_back(with_unit(integers_key(
                               "workload.batches.*.prefill", 1, kMaxTokens, 0, Json::array(),
                               "Prefill chunks, one a sequence.", [](Target & t) -> auto& { return batch(t).prefill; }),
                           "tokens"));
  rows.push_back(with_unit(integer_key(
                               "workload.batches.*.decode", 0, 65536, 0, "Sequences that decode one token.",
                               [](Target & t) -> auto& { return batch(t).decode; }),
                           "sequences"));
  Key replica = integer_key(
      "workload.batches.*.replica", 0, 63, Json(),
      "The one replica that the entry is for; null: "
      "every replica.",
      [](Target & t) -> auto& { return batch(t).replica; });
  replica.nullable = true;
  replica.set = [](Target& t, const Json& value) { batch(t).replica = value.is_null() ? -1 : value.get<int>(); };
  replica.get = [](Target& t) { return batch(t).replica < 0 ? Json() : Json(batch(t).replica); };
  rows.push_back(replica);
}

// Keys of workload.kind lookup.
void add_lookup_rows(std::vector<Key>& rows) {
  Key readers;
  readers.path = "workload.active_readers";
  readers.type = Type::readers;
  readers.fallback = "all";
  readers.values = {"all"};
  readers.low = 0;
  readers.high = 4095;
  readers.doc =
      "workload.kind lookup: the ranks that read: all, the first N of them, or a list. The others map and register "
      "their tables and stay idle.";
  readers.set = [](Target& t, const Json& value) {
    ActiveReaders& active = workload(t).active_readers;
    active = ActiveReaders{};
    if (value.is_number()) active.first = value.get<int>();
    if (value.is_array()) {
      for (const Json& rank : value) active.ranks.push_back(rank.get<int>());
    }
  };
  readers.get = [](Target& t) {
    const ActiveReaders& active = workload(t).active_readers;
    if (!active.ranks.empty()) return Json(active.ranks);
    return active.first > 0 ? Json(active.first) : Json("all");
  };
  rows.push_back(readers);
  rows.push_back(with_unit(
      integer_key(
          "workload.window_launches", 0, 4096, 0,
          "workload.kind lookup: launches of each table in a timed window; 0: as many as fill 200 us, found by "
          "each rank before its first window.",
          [](Target & t) -> auto& { return workload(t).window_launches; }),
      "launches"));
}

void add_workload_rows(std::vector<Key>& rows) {
  rows.push_back(enum_key("workload.kind", workload_kinds(), "steps",
                          "steps: fixed batches. lookup: the lookup kernel alone; a step is a window of launches. "
                          "replay: arrivals, a scheduler and "
                          "SLOs. remote: rows of other ranks.",
                          [](Target & t) -> auto& { return workload(t).kind; }, {"replay", "remote"}));
  add_batch_rows(rows);
  rows.push_back(with_unit(integer_key(
                               "workload.steps", 1, 1'000'000'000, 200, "Measured steps of a slot.",
                               [](Target & t) -> auto& { return workload(t).steps; }),
                           "steps"));
  rows.push_back(with_unit(integer_key(
                               "workload.warmup", 0, 1'000'000, 4, "Steps before the first block of a re-roll.",
                               [](Target & t) -> auto& { return workload(t).warmup; }),
                           "steps"));
  rows.push_back(with_unit(integer_key(
                               "workload.burn_in", 0, 1'000'000, 1, "Untimed steps that open each block.",
                               [](Target & t) -> auto& { return workload(t).burn_in; }),
                           "steps"));
  rows.push_back(enum_key(
      "workload.index_state", index_states(), "rotated",
      "rotated: fresh rows in each step, over a wide range. repeat: one fixed row sequence.",
      [](Target & t) -> auto& { return workload(t).index_state; }));
  add_lookup_rows(rows);
}

void add_token_rows(std::vector<Key>& rows) {
  const auto tokens = [](Target& t) -> TokenSpec& { return workload(t).tokens; };
  rows.push_back(enum_key(
      "workload.tokens.kind", token_kinds(), "zipf_ngram",
      "Where token ids come from: uniform, zipf_ngram (n-grams recur), constant, or file.",
      [tokens](Target & t) -> auto& { return tokens(t).kind; }));
  Key file = text_key(
      "workload.tokens.file", Json(),
      "Token file for kind file: raw ids as little-endian 32-bit integers; relative to the scenario "
      "file.",
      [tokens](Target & t) -> auto& { return tokens(t).file; });
  file.nullable = true;
  file.path_value = true;
  file.set = [tokens](Target& t, const Json& value) {
    tokens(t).file = value.is_null() ? std::string() : resolve_path(t, value.get<std::string>());
  };
  file.get = [tokens](Target& t) { return tokens(t).file.empty() ? Json() : Json(tokens(t).file); };
  rows.push_back(file);
  Key map = text_key(
      "workload.tokens.map", "identity",
      "Raw id to compressed id: identity, or a file (a JSON list, or little-endian 32-bit integers).",
      [tokens](Target & t) -> auto& { return tokens(t).map; });
  map.path_value = true;
  map.set = [tokens](Target& t, const Json& value) {
    const auto text = value.get<std::string>();
    tokens(t).map = text == "identity" ? text : resolve_path(t, text);
  };
  rows.push_back(map);
  rows.push_back(integer_key(
      "workload.tokens.constant", 0, 2147483647, 0,
      "The repeated raw id of kind constant.", [tokens](Target & t) -> auto& { return tokens(t).constant; }));
  rows.push_back(number_key(
      "workload.tokens.zipf_exponent", 0, 10, 0.0,
      "Exponent of the token frequencies of kind zipf_ngram; 0: fitted to the shipped text.",
      [tokens](Target & t) -> auto& { return tokens(t).zipf_exponent; }));
  rows.push_back(number_key(
      "workload.tokens.repeat_probability", 0, 1, 0.0,
      "Chance that kind zipf_ngram goes on as after an earlier n-gram; 0: fitted.", [tokens](Target & t) -> auto& {
        return tokens(t).repeat_probability;
      }));
}

// Arms and controls are read by the expansion in plan.cpp, which needs the whole file; here only their form is stated.
Key by_expansion(const char* path, Type type, const char* doc) {
  Key key;
  key.path = path;
  key.type = type;
  key.fallback = Json::object();
  key.doc = doc;
  key.max_items = 64;
  return key;
}

void add_experiment_rows(std::vector<Key>& rows) {
  const auto experiment = [](Target& t) -> ExperimentSpec& { return *t.experiment; };
  Key factor = text_key(
      "experiment.factor", Json(),
      "The one key that the arms change; null: one arm, the scenario itself.", [experiment](Target & t) -> auto& {
        return experiment(t).factor;
      });
  factor.nullable = true;
  factor.set = [experiment](Target& t, const Json& value) {
    experiment(t).factor = value.is_null() ? std::string() : value.get<std::string>();
  };
  factor.get = [experiment](Target& t) { return experiment(t).factor.empty() ? Json() : Json(experiment(t).factor); };
  rows.push_back(factor);
  Key aa = text_key(
      "experiment.aa", Json(),
      "An A/A experiment: the arms A and A2 are both the scenario itself, and share an allocation (together) or have "
      "re-rolls of their own (apart). It shows what this machine tells apart where nothing differs.",
      [experiment](Target & t) -> auto& { return experiment(t).aa; });
  aa.nullable = true;
  aa.values = {"together", "apart"};
  aa.set = [experiment](Target& t, const Json& value) {
    experiment(t).aa = value.is_null() ? std::string() : value.get<std::string>();
  };
  aa.get = [experiment](Target& t) { return experiment(t).aa.empty() ? Json() : Json(experiment(t).aa); };
  rows.push_back(aa);
  rows.push_back(by_expansion("experiment.arms", Type::value_map,
                              "Name of each arm and its value of the factor; the first is the baseline."));
  rows.push_back(by_expansion("experiment.joint_arms", Type::override_map,
                              "Name of each further arm and the keys it changes together; judged against the baseline, "
                              "and marked. Only what the "
                              "table of exceptions below allows."));
  rows.push_back(by_expansion("experiment.controls", Type::override_map,
                              "Name of each control and the keys it changes; measured beside the arms, never judged."));
  rows.push_back(integer_key(
      "experiment.pairs", 1, 10000, 8,
      "Pairs of measurements: the unit of inference. A pair is one re-roll where the arms share "
      "an allocation, else two neighbouring ones.",
      [experiment](Target & t) -> auto& { return experiment(t).pairs; }));
  rows.push_back(integer_key(
      "experiment.blocks", 1, 10000, 4,
      "Blocks (ABBA or BAAB) of a re-roll.", [experiment](Target & t) -> auto& { return experiment(t).blocks; }));
  Key delta = number_key(
      "experiment.delta", 0, 1, 0.02,
      "Smallest relative change that matters.", [experiment](Target & t) -> auto& { return experiment(t).delta; });
  delta.low_excluded = true;
  rows.push_back(delta);
  rows.push_back(text_key(
      "experiment.primary", "lookup_us.p50",
      "The metric that is judged.", [experiment](Target & t) -> auto& { return experiment(t).primary; }));
  rows.push_back(plain_key(
      "experiment.guards", Type::texts, Json::array({"front_us.p50", "collective_us.p50"}),
      "Metrics that must not get worse.", [experiment](Target & t) -> auto& { return experiment(t).guards; }));
}

// How long an experiment goes on, what it allocates at once, and what it rests on.
void add_conduct_rows(std::vector<Key>& rows) {
  const auto experiment = [](Target& t) -> ExperimentSpec& { return *t.experiment; };
  Key outcome = text_key(
      "experiment.outcome", Json(),
      "The client metric that decides link 4 of the chain of evidence (ttft_ms, itl_ms or goodput_requests_per_s, with "
      "a statistic): only workload.kind replay has clients. null: link 4 is not tested.",
      [experiment](Target & t) -> auto& { return experiment(t).outcome; });
  outcome.nullable = true;
  outcome.set = [experiment](Target& t, const Json& value) {
    experiment(t).outcome = value.is_null() ? std::string() : value.get<std::string>();
  };
  outcome.get = [experiment](Target& t) {
    return experiment(t).outcome.empty() ? Json() : Json(experiment(t).outcome);
  };
  rows.push_back(outcome);
  rows.push_back(plain_key(
      "experiment.cites", Type::texts, Json::array(),
      "Stored runs that the advice of an experiment on storage.copies rests on: an A1 (storage.policy) and a B1 "
      "(prefetch.submit) of this machine. Each a result folder, relative to the working directory, or archive:NAME.",
      [experiment](Target & t) -> auto& { return experiment(t).cites; }));
  Key stop = text_key(
      "experiment.stop", "fixed",
      "fixed: experiment.pairs pairs. precision: from 6 pairs on the run ends where the primary's interval of every "
      "arm is no wider than delta (half of it to each side), at experiment.pairs at the latest. Never by a p value.",
      [experiment](Target & t) -> auto& { return experiment(t).outcome; });
  stop.values = {"fixed", "precision"};
  stop.set = [experiment](Target& t, const Json& value) { experiment(t).stop_at_precision = value == "precision"; };
  stop.get = [experiment](Target& t) { return Json(experiment(t).stop_at_precision ? "precision" : "fixed"); };
  rows.push_back(stop);
  rows.push_back(boolean_key(
      "experiment.coresident", false,
      "For arms that allocate anew: each re-roll holds the tables of all arms at once, freshly allocated, and blocks "
      "of "
      "the arms alternate in it. It needs the memory of all arms.",
      [experiment](Target & t) -> auto& { return experiment(t).coresident; }));
  rows.push_back(boolean_key(
      "experiment.observed_pass", true,
      "After the blocks of each re-roll every arm runs one more slot with collectors on. Its times are kept apart and "
      "say what observing costs.",
      [experiment](Target & t) -> auto& { return experiment(t).observed_pass; }));
}

void add_inject_rows(std::vector<Key>& rows) {
  const auto inject = [](Target& t) -> InjectSpec& { return t.experiment->inject; };
  rows.push_back(boolean_key(
      "experiment.negative_control", true,
      "Run a gather from a private buffer before each timed step, where the experiment has two arms and two pairs or "
      "more; a verdict is void where its time moves with the arm.",
      [](Target & t) -> auto& { return t.experiment->negative_control; }));
  Key bare;
  bare.path = "experiment.bw_effective";
  bare.type = Type::boolean;
  bare.doc =
      "Close each block with a slot of the bare row gather (no dequantisation, no staging) over rows drawn as the "
      "lookup's, with the same readers: BW_effective, which lookup rates are set beside. null: with workload.kind "
      "lookup.";
  bare.nullable = true;
  bare.set = [](Target& t, const Json& value) {
    t.experiment->bw_effective = value.is_null() ? std::nullopt : std::optional(value.get<bool>());
  };
  bare.get = [](Target& t) { return t.experiment->bw_effective ? Json(*t.experiment->bw_effective) : Json(); };
  rows.push_back(bare);
  Key stage = text_key(
      "experiment.inject.stage", Json(),
      "Real extra work in this stage of one arm, to see whether the experiment finds it: lookup, front (backbone "
      "layers "
      "before the last consumer) or gather (TP). Such a result is marked and can be no baseline.",
      [inject](Target & t) -> auto& { return inject(t).stage; });
  stage.nullable = true;
  stage.values = {"lookup", "front", "gather"};
  stage.set = [inject](Target& t, const Json& value) {
    inject(t).stage = value.is_null() ? std::string() : value.get<std::string>();
  };
  stage.get = [inject](Target& t) { return inject(t).stage.empty() ? Json() : Json(inject(t).stage); };
  rows.push_back(stage);
  rows.push_back(with_unit(number_key(
                               "experiment.inject.percent", 0, 1000, 0.0,
                               "Size of the extra work, of what the stage takes in slots without it.",
                               [inject](Target & t) -> auto& { return inject(t).percent; }),
                           "%"));
  Key arm = text_key(
      "experiment.inject.arm", Json(),
      "The arm that gets the extra work; never the baseline.", [inject](Target & t) -> auto& { return inject(t).arm; });
  arm.nullable = true;
  arm.set = [inject](Target& t, const Json& value) {
    inject(t).arm = value.is_null() ? std::string() : value.get<std::string>();
  };
  arm.get = [inject](Target& t) { return inject(t).arm.empty() ? Json() : Json(inject(t).arm); };
  rows.push_back(arm);
}

void add_slo_rows(std::vector<Key>& rows) {
  rows.push_back(with_unit(number_key(
                               "slo.ttft_ms", 0, 1e9, 500.0, "Largest time to the first token.",
                               [](Target & t) -> auto& { return t.scenario->slo.ttft_ms; }),
                           "ms"));
  rows.push_back(with_unit(number_key(
                               "slo.itl_ms", 0, 1e9, 50.0, "Largest gap between two tokens of a request.",
                               [](Target & t) -> auto& { return t.scenario->slo.itl_ms; }),
                           "ms"));
  Key rule = text_key(
      "slo.itl_rule", "max", "Which gap of a request must meet itl_ms.",
      [](Target & t) -> auto& { return t.scenario->slo.itl_rule; });
  rule.values = {"max", "mean", "p99"};
  rows.push_back(rule);
}

void add_fault_rows(std::vector<Key>& rows) {
  Key kind = text_key(
      "fault.kind", "none",
      "A planted fault, for tests; a result that has one says so and gives no figures. kill: SIGKILL. "
      "hang: no progress. fail: the stage reports an error. skip_lookup, late_lookup: the last step's "
      "rows are wrong. corrupt: a byte of the tables that the rank loads is wrong.",
      [](Target & t) -> auto& { return t.scenario->fault.kind; });
  kind.values = {"none", "kill", "hang", "skip_lookup", "late_lookup", "fail", "corrupt"};
  rows.push_back(kind);
  Key stage = text_key(
      "fault.stage", Json(), "Where in a rank's life it strikes; null with kind none.",
      [](Target & t) -> auto& { return t.scenario->fault.stage; });
  stage.nullable = true;
  stage.values = {"before_map", "before_register", "during_load", "in_step"};
  stage.set = [](Target& t, const Json& value) {
    t.scenario->fault.stage = value.is_null() ? std::string() : value.get<std::string>();
  };
  stage.get = [](Target& t) { return t.scenario->fault.stage.empty() ? Json() : Json(t.scenario->fault.stage); };
  rows.push_back(stage);
  rows.push_back(integer_key(
      "fault.rank", -1, 4095, 0, "The rank it strikes; -1: the supervisor.",
      [](Target & t) -> auto& { return t.scenario->fault.rank; }));
  rows.push_back(integer_key(
      "fault.step", 0, 1'000'000'000, 0, "The step it strikes, for stage in_step.",
      [](Target & t) -> auto& { return t.scenario->fault.step; }));
}

}  // namespace

void add_load_rows(std::vector<Key>& rows) {
  add_workload_rows(rows);
  add_token_rows(rows);
  add_experiment_rows(rows);
  add_conduct_rows(rows);
  add_inject_rows(rows);
  add_slo_rows(rows);
  add_fault_rows(rows);
}

}  // namespace eb::plan
