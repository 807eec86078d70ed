#include "harness/result/derivation.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "harness/base/error.h"
#include "harness/engram/geometry.h"
#include "harness/measure/experiment.h"
#include "harness/measure/order.h"
#include "harness/measure/slot_values.h"
#include "harness/result/folder.h"
#include "harness/result/npy.h"

namespace eb::result {

namespace {

// Plans of the first version said "all ranks read" as 0, which a scenario may no longer say.
Json in_todays_words(Json plan) {
  const Json::json_pointer readers("/workload/active_readers");
  if (plan.contains(readers) && plan.at(readers) == 0) plan[readers] = "all";
  return plan;
}

}  // namespace

Derivation::Derivation(const std::string& path, const Json& result, const Json& plan) : path_(path) {
  read_slots(result);
  read_events_of(path);
  if (events_count_ == 0) {
    obstacle_ = "the run stored no event";
    return;
  }
  read_plan(path, plan, result);
  if (!obstacle_.empty()) return;
  const std::vector<measure::Column> columns = measure::StepMetrics(layouts_.front(), layers_).columns();
  std::set<std::string> known;
  for (const Json& cell : result.at("cells")) known.insert(cell.at("metric").get<std::string>());
  for (std::size_t c = 0; c < columns.size(); ++c) {
    columns_[columns[c].name] = c;
    told_.push_back(known.contains(columns[c].name));
  }
}

void Derivation::read_slots(const Json& result) {
  for (const Json& json : result.at("slots")) {
    Slot slot;
    slot.kind = json.at("kind").get<std::string>();
    slot.arm = json.at("arm").get<std::string>();
    slot.reroll = json.at("reroll").get<int>();
    slot.first_step = json.at("first_step").get<std::int64_t>();
    slot.steps = json.at("steps").get<std::int64_t>();
    if (const Json launches = json.value("window_launches", Json()); launches.is_array()) {
      slot.window_launches = launches.get<std::vector<std::int64_t>>();
    }
    slots_[json.at("slot").get<int>()] = slot;
  }
}

void Derivation::read_plan(const std::string& path, const Json& plan, const Json& result) {
  try {
    plan_ = plan::parse_plan(in_todays_words(plan.at("plan")).dump(), path, {});
    // Controls that the machine could not run are in the plan and not in the run's order.
    std::erase_if(plan_.arms, [&](const plan::Arm& arm) {
      return arm.control && std::none_of(result.at("arms").begin(), result.at("arms").end(),
                                         [&](const Json& one) { return one.at("name") == arm.name; });
    });
    for (const plan::Arm& arm : plan_.arms) {
      const engram::Geometry geometry = engram::make_geometry(arm.scenario.model.base, arm.scenario.model.table_scale);
      layouts_.push_back(plan::make_layout(arm.scenario, geometry));
    }
    for (const measure::RerollPlan& reroll : measure::make_schedule(plan_)) {
      rerolls_[reroll.index] = reroll;
    }
    layers_ = measure::engram_layers(plan_);
  } catch (const Error& error) {
    obstacle_ = fmt::format("this program does not understand the run's plan: {}", error.what());
  }
}

void Derivation::read_events_of(const std::string& path) {
  std::map<int, std::vector<rank::EventRecord>> ranks;
  for (const std::string& name : run_files(path)) {
    if (!name.starts_with("events/rank-") || !name.ends_with(".npy")) continue;
    ranks[std::stoi(name.substr(std::string("events/rank-").size()))] = read_events(path + "/" + name);
  }
  const std::size_t count = ranks.empty() ? 0 : static_cast<std::size_t>(ranks.rbegin()->first) + 1;
  for (const auto& [rank, records] : ranks) {
    events_count_ += records.size();
    for (std::size_t from = 0; from < records.size();) {
      std::size_t to = from;
      while (to < records.size() && records[to].slot == records[from].slot) ++to;
      auto& slot = events_[records[from].slot];
      slot.resize(count);
      auto& own = slot[static_cast<std::size_t>(rank)];
      own.insert(own.end(), records.begin() + static_cast<std::ptrdiff_t>(from),
                 records.begin() + static_cast<std::ptrdiff_t>(to));
      from = to;
    }
  }
}

const Derivation::Slot& Derivation::slot_of(const SampleLine& line) const {
  const auto found = slots_.find(line.slot);
  if (found == slots_.end()) {
    fail(Exit::bad_data, "{}: slot {} is none of the slots of result.json", line.place, line.slot);
  }
  const Slot& slot = found->second;
  if (slot.arm != line.arm || slot.reroll != line.reroll) {
    fail(Exit::bad_data, "{}: arm {} and re-roll {}, result.json says {} and {} of slot {}", line.place, line.arm,
         line.reroll, slot.arm, slot.reroll, line.slot);
  }
  return slot;
}

std::size_t Derivation::arm_of(const Slot& slot) const {
  std::size_t arm = 0;
  while (arm < plan_.arms.size() && plan_.arms[arm].name != slot.arm) ++arm;
  return arm;
}

const plan::RunLayout* Derivation::layout_of(const Slot& slot) const {
  const auto reroll = rerolls_.find(slot.reroll);
  const std::size_t arm = arm_of(slot);
  if (reroll == rerolls_.end() || arm == plan_.arms.size()) return nullptr;
  // Arms whose tables are held at once have ranks of their own.
  return &layouts_[reroll->second.coresident.empty() ? reroll->second.allocated_for : arm];
}

void Derivation::derive(int slot) {
  const Slot& about = slots_.at(slot);
  const std::size_t arm = arm_of(about);
  const plan::RunLayout* placed = layout_of(about);
  if (placed == nullptr) {
    fail(Exit::bad_data, "{}: slot {} ran arm {} in re-roll {}, which the plan does not have", path_, slot, about.arm,
         about.reroll);
  }
  const plan::RunLayout& layout = *placed;
  const auto found = events_.find(slot);
  std::vector<std::span<const rank::EventRecord>> events(layout.ranks.size());
  for (std::size_t r = 0; r < events.size(); ++r) {
    if (found != events_.end() && r < found->second.size()) events[r] = found->second[r];
    const bool idle = r < about.window_launches.size() && about.window_launches[r] == 0;
    if (events[r].empty() && !idle)
      fail(Exit::bad_data, "{}: rank {} has samples and no events in slot {}", path_, r, slot);
  }
  try {
    values_ = measure::slot_values(events, plan_.arms[arm].scenario,
                                   {about.steps, about.first_step, about.window_launches}, layout, layers_);
  } catch (const Error& error) {
    fail(Exit::bad_data, "{}: the events of slot {} give no samples: {}", path_, slot, error.what());
  }
  current_ = slot;
}

void Derivation::check(const SampleLine& line) {
  const Slot& slot = slot_of(line);
  if (line.slot != current_) derive(line.slot);
  const std::int64_t step = line.step - slot.first_step;
  if (step < 0 || step >= static_cast<std::int64_t>(values_.size())) {
    fail(Exit::bad_data, "{}: step {} is none of slot {}", line.place, line.step, line.slot);
  }
  const measure::StepValues& values = values_[static_cast<std::size_t>(step)];
  const auto& list = line.rank ? values.per_rank : values.per_replica;
  const int index = line.rank.value_or(line.replica);
  if (index < 0 || static_cast<std::size_t>(index) >= list.size()) {
    fail(Exit::bad_data, "{}: the run has no {} {}", line.place, line.rank ? "rank" : "replica", index);
  }
  const std::vector<double>& derived = list[static_cast<std::size_t>(index)];
  std::vector<bool> seen(derived.size());
  for (const auto& [metric, value] : line.values) {
    const auto column = columns_.find(metric);
    if (column == columns_.end()) fail(Exit::bad_data, "{}: {} is no metric of this run", line.place, metric);
    seen[column->second] = true;
    if (derived[column->second] != value) {
      fail(Exit::bad_data, "{}: {} is {}, the events give {}", line.place, metric, value, derived[column->second]);
    }
  }
  for (std::size_t c = 0; c < derived.size(); ++c) {
    if (seen[c] || !told_[c] || std::isnan(derived[c])) continue;
    const auto is_it = [c](const auto& entry) { return entry.second == c; };
    fail(Exit::bad_data, "{}: no {}, the events give {}", line.place,
         std::find_if(columns_.begin(), columns_.end(), is_it)->first, derived[c]);
  }
  ++slots_.at(line.slot).lines;
  ++derived_;
}

void Derivation::check_none_missing(bool complete) const {
  for (const auto& [number, slot] : slots_) {
    const plan::RunLayout* placed = layout_of(slot);
    if ((slot.kind != "timed" && slot.kind != "calibration") || placed == nullptr) continue;
    if (slot.lines == 0 && (!complete || !events_.contains(number))) continue;
    const plan::RunLayout& layout = *placed;
    std::set<int> replicas;
    for (const plan::RankPlace& place : layout.ranks) replicas.insert(place.replica);
    const std::size_t expected = static_cast<std::size_t>(slot.steps) * (replicas.size() + layout.ranks.size());
    if (slot.lines != expected) {
      fail(Exit::bad_data, "{}: slot {} has {} samples, its events give {}", path_, number, slot.lines, expected);
    }
  }
}

}  // namespace eb::result
