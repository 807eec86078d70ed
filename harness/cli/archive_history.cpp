#include "harness/cli/archive_history.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/cli/tables.h"
#include "harness/measure/metrics.h"
#include "harness/result/samples.h"

namespace eb::cli {

namespace {

using result::Json;

// Where a cell keeps a statistic.
std::string cell_key(const std::string& statistic) {
  if (statistic == "p50") return "median";
  return statistic == "p99.9" ? "p99_9" : statistic;
}

Json value_of(const Json& cell, const std::string& statistic) {
  const Json value = cell.value(cell_key(statistic), Json());
  if (value.is_number()) return value;
  if (value.is_object() && value.contains("value") && value.at("value").is_number()) return value.at("value");
  if (value.is_object() && value.contains("reason")) return value;
  return result::missing(cell.value("reason", "the run has no value of it"));
}

struct Before {
  double value = 0;
  std::string plan;
  std::string machine;
};

Json change(const std::map<std::pair<std::string, std::string>, Before>& before, const Json& row,
            const std::string& machine) {
  if (!row.at("value").is_number()) return result::missing("the run has no value of it");
  const auto found = before.find({row.at("name"), row.at("arm")});
  if (found == before.end()) return result::missing("the first run of this name and arm");
  if (found->second.plan != row.at("plan_sha256")) return result::missing("the run before it had another plan");
  if (found->second.machine != machine) return result::missing("the run before it ran on another machine");
  if (found->second.value == 0) return result::missing("the run before it shows 0");
  return row.at("value").get<double>() / found->second.value;
}

std::string text_or(const Json& value, std::size_t length, const char* none) {
  return value.is_string() ? value.get<std::string>().substr(0, length) : none;
}

}  // namespace

Json history(const result::Archive& archive, const HistoryQuery& query) {
  measure::check_metric_name(query.metric);
  const result::MetricName metric = result::split_metric(query.metric);
  Json runs = Json::array();
  std::map<std::pair<std::string, std::string>, Before> before;
  for (const result::ArchiveEntry& entry : archive.entries()) {
    if (!query.name.empty() && entry.name != query.name) continue;
    const Json document = Json::parse(read_file(archive.folder_of(entry) + "/result.json"), nullptr, false);
    if (!document.is_object() || !document.contains("cells")) {
      fail(Exit::bad_data, "{}/result.json: not a result; engram-bench verify says what is wrong",
           archive.folder_of(entry));
    }
    const Json key = document.value("evidence", Json::object()).value("floor_key", Json::object());
    const std::string machine = key.value("fingerprint", "");
    for (const Json& cell : document.at("cells")) {
      if (cell.at("metric") != metric.column || (!query.arm.empty() && cell.at("arm") != query.arm)) continue;
      const Json described = result::entry_json(entry);
      Json row = {{"id", entry.id}, {"name", entry.name}, {"date", entry.date}};
      for (const char* field : {"commit", "binary_sha256", "version", "plan_sha256", "complete", "injected"}) {
        row[field] = described.at(field);
      }
      row["machine"] = machine;
      row["arm"] = cell.at("arm");
      row["n"] = cell.at("n");
      row["value"] = value_of(cell, metric.statistic);
      row["q1"] = cell.at("q1");
      row["q3"] = cell.at("q3");
      row["change_ratio"] = change(before, row, machine);
      if (row["value"].is_number()) {
        before[{entry.name, row["arm"].get<std::string>()}] = {row["value"].get<double>(), entry.plan_sha256, machine};
      }
      runs.push_back(std::move(row));
    }
  }
  return {{"metric", metric.column + "." + metric.statistic},
          {"unit", metric.column.find("_us") != std::string::npos ? "us" : ""},
          {"runs", runs}};
}

std::string history_table(const Json& document) {
  std::string out = fmt::format("{} by date of the run\n", document.at("metric").get<std::string>());
  out += fmt::format("{:20} {:12} {:12} {:12} {:24} {:16} {:>6} {:>10} {:>23} {:>8}\n", "date", "run", "commit",
                     "program", "name", "arm", "n", "value", "q1 - q3", "change");
  for (const Json& row : document.at("runs")) {
    const bool known = row.at("value").is_number();
    const Json& ratio = row.at("change_ratio");
    const std::string spread =
        row.at("q1").is_number()
            ? fmt::format("{} - {}", short_number(row.at("q1").get<double>()), short_number(row.at("q3").get<double>()))
            : "";
    out += fmt::format("{:20} {:12} {:12} {:12} {:24} {:16} {:>6} {:>10} {:>23} {:>8}{}\n",
                       row.at("date").get<std::string>(), row.at("id").get<std::string>().substr(0, 12),
                       text_or(row.at("commit"), 12, "?"), text_or(row.at("binary_sha256"), 12, "?"),
                       row.at("name").get<std::string>(), row.at("arm").get<std::string>(),
                       row.at("n").get<std::size_t>(), known ? short_number(row.at("value").get<double>()) : "-",
                       spread, ratio.is_number() ? fmt::format("{:+.2f} %", (ratio.get<double>() - 1) * 100) : "-",
                       known ? "" : "  " + row.at("value").at("reason").get<std::string>());
  }
  return out;
}

}  // namespace eb::cli
