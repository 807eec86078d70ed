#include "harness/control/encoding.h"

#include <array>
#include <nlohmann/json.hpp>

#include "harness/base/error.h"

namespace eb::control {

namespace {

using Json = nlohmann::json;

// ToSupervisor's numbers start here, so that a message that went the wrong way is noticed.
constexpr std::uint32_t kToSupervisorBase = 16;

constexpr std::array<const char*, 11> kStageNames = {"create",   "map",        "policy",  "pretouch",
                                                     "register", "load",       "prepare", "unregister",
                                                     "unmap",    "stock_open", "digest"};

Stage stage_from(const Json& value) {
  const auto text = value.get<std::string>();
  for (std::size_t i = 0; i < kStageNames.size(); ++i) {
    if (text == kStageNames[i]) return static_cast<Stage>(i);
  }
  fail(Exit::failure, "control: unknown stage {}", text);
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// One pair of functions a message: `to` fills, `from` reads with type checks (a missing key throws).
Json to_json(const Setup& m) {
  return {{"rank", m.rank},
          {"scenario", m.scenario_json},
          {"arena_bytes", m.arena_bytes},
          {"allowed_cpus", m.allowed_cpus},
          {"memory_nodes", m.memory_nodes},
          {"numa_node", m.numa_node},
          {"device", m.device},
          {"rank_nodes", m.rank_nodes},
          {"instrument", m.instrument},
          {"allow_degraded", m.allow_degraded}};
}
void from_json(const Json& j, Setup& m) {
  m.rank = j.at("rank").get<int>();
  m.scenario_json = j.at("scenario").get<std::string>();
  m.arena_bytes = j.at("arena_bytes").get<std::uint64_t>();
  m.allowed_cpus = j.at("allowed_cpus").get<std::vector<int>>();
  m.memory_nodes = j.at("memory_nodes").get<std::vector<int>>();
  m.numa_node = j.at("numa_node").get<int>();
  m.device = j.at("device").get<int>();
  m.rank_nodes = j.at("rank_nodes").get<std::vector<int>>();
  m.instrument = j.at("instrument").get<bool>();
  m.allow_degraded = j.at("allow_degraded").get<bool>();
}

Json to_json(const std::vector<TablePiece>& pieces) {
  Json list = Json::array();
  for (const TablePiece& piece : pieces) list.push_back({piece.node, piece.bytes});
  return list;
}
void from_json(const Json& j, std::vector<TablePiece>& pieces) {
  for (const Json& one : j) pieces.push_back({one.at(0).get<int>(), one.at(1).get<std::uint64_t>()});
}

Json to_json(const RunStage& m) { return {{"stage", name(m.stage)}, {"path", m.path}, {"pieces", to_json(m.pieces)}}; }
void from_json(const Json& j, RunStage& m) {
  m.stage = stage_from(j.at("stage"));
  m.path = j.at("path").get<std::string>();
  from_json(j.at("pieces"), m.pieces);
}

Json to_json(const Snapshot& m) { return {{"label", m.label}}; }
void from_json(const Json& j, Snapshot& m) { m.label = j.at("label").get<std::string>(); }

Json to_json(const RunSlot& m) {
  return {{"slot", m.slot},
          {"prefetch", m.prefetch_json},
          {"steps", m.steps},
          {"first_step", m.first_step},
          {"timed", m.timed},
          {"check", m.check},
          {"check_hidden", m.check_hidden},
          {"control", m.control},
          {"observed", m.observed},
          {"trace", m.trace},
          {"inject_stage", m.inject_stage},
          {"inject_percent", m.inject_percent},
          {"bare", m.bare}};
}
void from_json(const Json& j, RunSlot& m) {
  m.slot = j.at("slot").get<std::uint16_t>();
  m.prefetch_json = j.at("prefetch").get<std::string>();
  m.steps = j.at("steps").get<std::int64_t>();
  m.first_step = j.at("first_step").get<std::int64_t>();
  m.timed = j.at("timed").get<bool>();
  m.check = j.at("check").get<bool>();
  m.check_hidden = j.at("check_hidden").get<bool>();
  m.control = j.at("control").get<bool>();
  m.observed = j.at("observed").get<bool>();
  m.trace = j.at("trace").get<bool>();
  m.inject_stage = j.at("inject_stage").get<std::string>();
  m.inject_percent = j.at("inject_percent").get<double>();
  m.bare = j.at("bare").get<bool>();
}

Json to_json(const Stop&) { return Json::object(); }
void from_json(const Json&, Stop&) {}

Json to_json(const Ready& m) {
  Json lost = Json::array();
  for (const LostPart& one : m.binding_lost) lost.push_back({{"part", one.part}, {"text", one.text}});
  return {{"pid", m.pid}, {"binding_lost", std::move(lost)}};
}
void from_json(const Json& j, Ready& m) {
  m.pid = j.at("pid").get<int>();
  for (const Json& one : j.at("binding_lost")) {
    m.binding_lost.push_back({one.at("part").get<std::string>(), one.at("text").get<std::string>()});
  }
}

Json to_json(const StageDone& m) {
  return {{"stage", name(m.stage)},
          {"start_ns", m.start_ns},
          {"end_ns", m.end_ns},
          {"minor_faults", m.minor_faults},
          {"major_faults", m.major_faults},
          {"note", m.note},
          {"allocated_before_bytes", m.allocated_before_bytes},
          {"allocated_after_bytes", m.allocated_after_bytes},
          {"pieces", to_json(m.pieces)}};
}
void from_json(const Json& j, StageDone& m) {
  m.stage = stage_from(j.at("stage"));
  m.start_ns = j.at("start_ns").get<std::int64_t>();
  m.end_ns = j.at("end_ns").get<std::int64_t>();
  m.minor_faults = j.at("minor_faults").get<std::int64_t>();
  m.major_faults = j.at("major_faults").get<std::int64_t>();
  m.note = j.at("note").get<std::string>();
  m.allocated_before_bytes = j.at("allocated_before_bytes").get<std::int64_t>();
  m.allocated_after_bytes = j.at("allocated_after_bytes").get<std::int64_t>();
  from_json(j.at("pieces"), m.pieces);
}

Json to_json(const SnapshotDone& m) { return {{"label", m.label}, {"json", m.json}}; }
void from_json(const Json& j, SnapshotDone& m) {
  m.label = j.at("label").get<std::string>();
  m.json = j.at("json").get<std::string>();
}

Json to_json(const SlotDone& m) {
  return {{"slot", m.slot},
          {"event_count", m.event_count},
          {"facts", m.facts_json},
          {"trace", m.trace_json},
          {"window_launches", m.window_launches}};
}
void from_json(const Json& j, SlotDone& m) {
  m.slot = j.at("slot").get<std::uint16_t>();
  m.event_count = j.at("event_count").get<std::uint64_t>();
  m.facts_json = j.at("facts").get<std::string>();
  m.trace_json = j.at("trace").get<std::string>();
  m.window_launches = j.at("window_launches").get<std::int64_t>();
}

Json to_json(const Failure& m) { return {{"rank", m.rank}, {"stage", m.stage}, {"text", m.text}, {"exit", m.exit}}; }
void from_json(const Json& j, Failure& m) {
  m.rank = j.at("rank").get<int>();
  m.stage = j.at("stage").get<std::string>();
  m.text = j.at("text").get<std::string>();
  m.exit = j.at("exit").get<int>();
}

// Reads alternative `type` of Variant; I counts through the alternatives.
template <typename Variant, std::size_t I = 0>
Variant decode(std::uint32_t type, const std::string& payload) {
  if constexpr (I == std::variant_size_v<Variant>) {
    fail(Exit::failure, "control: unknown message type {}", type);
  } else {
    if (type != I) return decode<Variant, I + 1>(type, payload);
    std::variant_alternative_t<I, Variant> message;
    try {
      from_json(Json::parse(payload), message);
    } catch (const Json::exception& error) {
      fail(Exit::failure, "control: message of type {} is malformed: {}", type, error.what());
    }
    return Variant(std::in_place_index<I>, std::move(message));
  }
}

}  // namespace

const char* name(Stage stage) noexcept { return kStageNames[static_cast<std::size_t>(stage)]; }

Encoded encode(const ToRank& message) {
  return {static_cast<std::uint32_t>(message.index()),
          std::visit([](const auto& m) { return text_of(to_json(m)); }, message)};
}

Encoded encode(const ToSupervisor& message) {
  return {kToSupervisorBase + static_cast<std::uint32_t>(message.index()),
          std::visit([](const auto& m) { return text_of(to_json(m)); }, message)};
}

ToRank decode_to_rank(std::uint32_t type, const std::string& payload) { return decode<ToRank>(type, payload); }

ToSupervisor decode_to_supervisor(std::uint32_t type, const std::string& payload) {
  if (type < kToSupervisorBase) fail(Exit::failure, "control: message type {} goes to a rank, not from one", type);
  return decode<ToSupervisor>(type - kToSupervisorBase, payload);
}

}  // namespace eb::control
