#include "harness/cli/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace eb::cli {

namespace {

using result::Json;

constexpr std::size_t kArmsAcross = 3;

// Families of metrics that the console shows, in this order; `-v` shows the rest of the registry behind them.
constexpr const char* kShown[] = {"lookup_us",     "launch_latency_us", "rows_per_s",     "aggregate_rows_per_s",
                                  "queue_us",      "exposed_us",        "recoverable_us", "front_us",
                                  "ids_us",        "rows_us",           "gather_us",      "skew_us",
                                  "wkv_gather_us", "wkv_gate_us",       "expert_us",      "step_us"};

std::string family(const std::string& metric) { return metric.substr(0, metric.find('.')); }

// A table of text: first column to the left, the others to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], width[i]) : fmt::format("  {:>{}}", row[i], width[i]);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string text_of(const Json& value, const char* otherwise) {
  return value.is_string() ? value.get<std::string>() : otherwise;
}

std::string bytes_text(const Json& value) {
  if (!value.is_number()) return "unknown";
  return fmt::format("{:.2f} MiB", value.get<double>() / (1024.0 * 1024.0));
}

std::string deviation_text(const Json& value) {
  return value.is_number() ? fmt::format(" ({:+.2f} %)", value.get<double>() * 100) : "";
}

std::string reason_of(const Json& value) {
  return value.is_object() && value.contains("reason") ? value["reason"].get<std::string>() : "";
}

std::string shares_text(const Json& shares) {
  if (!shares.is_object() || shares.contains("reason")) return "unknown";
  std::string text;
  for (const auto& [node, share] : shares.items()) {
    if (share.get<double>() == 0 && shares.size() > 2) continue;
    text += fmt::format("{}N{} {:.1f} %", text.empty() ? "" : ", ", node, share.get<double>() * 100);
  }
  return text;
}

std::string joined(const Json& names) {
  std::string text;
  for (const Json& name : names) text += (text.empty() ? "" : ", ") + name.get<std::string>();
  return text;
}

std::string arm_lines(const Json& document) {
  std::string text;
  for (const Json& arm : document["arms"]) {
    std::string changes;
    for (const auto& [key, value] : arm["overrides"].items()) {
      changes += fmt::format("{}{} = {}", changes.empty() ? "" : ", ", key,
                             value.is_string() ? value.get<std::string>() : value.dump());
    }
    const Json& provenance = arm["provenance"];
    text += fmt::format(
        "  {}{}: {}  [{}{}{}]\n", arm["name"].get<std::string>(), arm["control"] == true ? " (control)" : "",
        changes.empty() ? "the scenario as it is" : changes, provenance["kind"].get<std::string>(),
        provenance["text"].get<std::string>().empty() ? "" : ": ", provenance["text"].get<std::string>());
    if (arm["replicas_uncoupled"] == true)
      text += "    replicas_uncoupled: nothing in a step ties the replicas together\n";
  }
  return text;
}

std::string checks_line(const Json& document) {
  const Json& checks = document["checks"];
  if (checks["passed"] == true) {
    return fmt::format("Checks passed: {} ids and {} rows equal the reference, in {} slots.\n",
                       checks["ids_compared"].get<std::int64_t>(), checks["rows_compared"].get<std::int64_t>(),
                       checks["slots"].size());
  }
  return checks["passed"] == false ? "Checks FAILED: no figure of this run is shown.\n" : "Nothing was checked.\n";
}

// The cells of a result, found by arm and metric.
struct Cells {
  explicit Cells(const Json& document) {
    for (const Json& arm : document["arms"]) arms.push_back(arm["name"].get<std::string>());
    for (const Json& cell : document["cells"]) {
      const std::string metric = cell["metric"].get<std::string>();
      found[{cell["arm"].get<std::string>(), metric}] = &cell;
      if (std::find(metrics.begin(), metrics.end(), metric) == metrics.end()) metrics.push_back(metric);
    }
  }

  // Null where the result has no figure of it.
  [[nodiscard]] const Json* measured(const std::string& arm, const std::string& metric) const {
    const auto cell = found.find({arm, metric});
    return cell != found.end() && (*cell->second)["median"].is_number() ? cell->second : nullptr;
  }

  // A sum over layers that has only one.
  [[nodiscard]] bool repeats_its_layer(const std::string& metric) const {
    const auto same = [&](const std::string& other) { return family(other) == metric; };
    return std::count_if(metrics.begin(), metrics.end(), same) == 2;
  }

  std::vector<std::string> arms;
  std::vector<std::string> metrics;  // in the order of the registry
  std::map<std::pair<std::string, std::string>, const Json*> found;
};

std::vector<std::string> shown_metrics(const Cells& cells, bool all_metrics) {
  std::vector<std::string> rows;
  const auto add_family = [&](const std::string& name) {
    for (const std::string& metric : cells.metrics) {
      if (family(metric) == name && std::find(rows.begin(), rows.end(), metric) == rows.end()) rows.push_back(metric);
    }
  };
  for (const char* name : kShown) add_family(name);
  if (all_metrics) {
    for (const std::string& metric : cells.metrics) add_family(family(metric));
  }
  return rows;
}

std::string figure_text(const Json& cell) {
  return fmt::format("{} [{}-{}] {}", short_number(cell["median"].get<double>()),
                     short_number(cell["q1"].get<double>()), short_number(cell["q3"].get<double>()),
                     cell["n"].get<std::int64_t>());
}

// Why the metrics are missing that no arm has.
std::string absent_lines(const Cells& cells, const std::vector<std::string>& rows) {
  std::string text;
  for (const std::string& metric : rows) {
    const auto measured = [&](const std::string& arm) { return cells.measured(arm, metric) != nullptr; };
    if (metric != family(metric) || std::any_of(cells.arms.begin(), cells.arms.end(), measured)) continue;
    const auto cell = cells.found.find({cells.arms.front(), metric});
    text += fmt::format(
        "  {}: not here: {}\n", metric,
        cell == cells.found.end() ? "not in the result" : text_of(cell->second->value("reason", Json()), ""));
  }
  return text;
}

}  // namespace

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 1000) return fmt::format("{:.0f}", value);
  if (size >= 100) return fmt::format("{:.1f}", value);
  if (size >= 10) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3f}", value);
}

std::string figures_table(const Json& document, bool all_metrics) {
  const Cells cells(document);
  if (cells.metrics.empty()) return "";
  const std::vector<std::string> rows = shown_metrics(cells, all_metrics);
  std::string text;
  for (std::size_t from = 0; from < cells.arms.size(); from += kArmsAcross) {
    const std::size_t until = std::min(cells.arms.size(), from + kArmsAcross);
    std::vector<std::vector<std::string>> table = {{"us a step: median [q1-q3] n"}};
    for (std::size_t a = from; a < until; ++a) table[0].push_back(cells.arms[a]);
    for (const std::string& metric : rows) {
      if (cells.repeats_its_layer(metric)) continue;
      std::vector<std::string> row = {metric};
      bool any = false;
      for (std::size_t a = from; a < until; ++a) {
        const Json* cell = cells.measured(cells.arms[a], metric);
        any = any || cell != nullptr;
        row.push_back(cell != nullptr ? figure_text(*cell) : "-");
      }
      if (any) table.push_back(row);
    }
    text += aligned(table);
  }
  return text + absent_lines(cells, rows);
}

std::string lookup_rates_table(const Json& document) {
  std::vector<std::vector<std::string>> table = {{"lookup rate", "rows/s", "BW_effective rows/s", "share"}};
  const auto add = [&](const std::string& label, const Json& rates) {
    const Json& share = rates["share_of_bw_effective"];
    table.push_back({label, fmt::format("{:.4g}", rates["rows_per_s"].get<double>()),
                     share.is_number() ? fmt::format("{:.4g}", rates["bw_effective_rows_per_s"].get<double>()) : "-",
                     share.is_number() ? fmt::format("{:.3f}", share.get<double>()) : "-"});
  };
  bool calibrated = false;
  for (const Json& arm : document.value("lookup_rates", Json::array())) {
    const auto name = arm["arm"].get<std::string>();
    for (const Json& rank : arm["per_rank"]) {
      calibrated = calibrated || rank["share_of_bw_effective"].is_number();
      if (rank["layer"].is_null()) add(fmt::format("{} rank {}", name, rank["rank"].get<int>()), rank);
    }
    if (arm["aggregate"].contains("rows_per_s")) add(name + " all readers", arm["aggregate"]);
  }
  return calibrated ? aligned(table) : "";
}

std::string placement_table(const Json& document) {
  constexpr const char* kLabels[] = {"after_register", "after_load", "steady"};
  std::vector<std::vector<std::string>> table = {{"backing", "requested", "after_register", "after_load", "steady"}};
  std::map<std::string, std::map<std::string, std::string>> cells;  // row name -> label -> text
  std::vector<std::string> order;
  std::map<std::string, std::string> requested;
  for (const Json& snapshot : document["placement"]["snapshots"]) {
    const std::string label = snapshot["label"].get<std::string>();
    for (const Json& backing : snapshot["backings"]) {
      const std::string row = fmt::format("re-roll {} ({}) backing {}", snapshot["reroll"].get<int>(),
                                          joined(snapshot["arms"]), backing["backing"].get<int>());
      if (std::find(order.begin(), order.end(), row) == order.end()) order.push_back(row);
      std::string wish = snapshot["requested_policy"].get<std::string>();
      if (reason_of(snapshot["requested_shares"]).empty()) wish += ": " + shares_text(snapshot["requested_shares"]);
      requested[row] = wish;
      const Json observed = backing.value("observed_shares", Json());
      cells[row][label] = shares_text(observed);
      // Where numa_maps is missing, the pages by table are what is known.
      if (!reason_of(observed).empty() && backing.contains("tables")) {
        std::string by_table;
        for (const Json& one : backing["tables"]) {
          by_table += fmt::format("{}l{}: {}", by_table.empty() ? "" : "; ", one["layer"].get<int>(),
                                  shares_text(one["observed_shares"]));
        }
        cells[row][label] = by_table;
      }
    }
  }
  for (const std::string& row : order) {
    std::vector<std::string> line = {row, requested[row]};
    for (const char* label : kLabels) line.push_back(cells[row].contains(label) ? cells[row][label] : "-");
    table.push_back(line);
  }
  return order.empty() ? "" : aligned(table);
}

std::string ledger_table(const Json& document) {
  std::vector<std::vector<std::string>> table = {{"re-roll", "ledger", "PSS", "backing", "node memory"}};
  for (const Json& entry : document["ledger"]) {
    const Json& seen = entry["observed"];
    const Json& off = entry["deviation"];
    table.push_back({fmt::format("{} ({})", entry["reroll"].get<int>(), joined(entry["arms"])),
                     bytes_text(entry["backing_bytes"]), bytes_text(seen["pss_bytes"]) + deviation_text(off["pss"]),
                     bytes_text(seen["backing_allocated_bytes"]) + deviation_text(off["backing_allocated"]),
                     bytes_text(seen["node_growth_bytes"]) + deviation_text(off["node_growth"])});
  }
  return table.size() == 1 ? "" : aligned(table);
}

std::string grid_caps_table(const Json& document) {
  const Json caps = document.value("grid_caps", Json());
  if (!caps.is_object()) return "";
  std::vector<std::vector<std::string>> table = {{"arm", "asked", "cap", "rows a step", "tiles", "grid", "lookup us",
                                                  "exposed us", "exposed/step", "front us", "front vs smallest",
                                                  "step us"}};
  const auto number = [](const Json& value) {
    return value.is_number() ? short_number(value.get<double>()) : std::string("-");
  };
  for (const Json& cap : caps["caps"]) {
    const Json& share = cap["exposed_step_share"];
    const Json& front = cap["front_against_smallest"];
    std::string slower = "-";
    if (front.is_object() && front["effect_ratio"].is_number()) {
      slower = fmt::format("{:+.2f} %", (front["effect_ratio"].get<double>() - 1) * 100);
    }
    table.push_back(
        {cap["arm"].get<std::string>(), cap["asked"].get<std::string>(),
         std::to_string(cap["cap_programs"].get<std::int64_t>()), number(cap["rows_per_step_and_rank"]),
         std::to_string(cap["tiles_max"].get<std::int64_t>()), std::to_string(cap["grid_max"].get<std::int64_t>()),
         number(cap["lookup_us_median"]), number(cap["exposed_us_median"]),
         share.contains("mean") ? fmt::format("{:.2f} % [{:.2f}, {:.2f}]", share["mean"].get<double>() * 100,
                                              share["low"].get<double>() * 100, share["high"].get<double>() * 100)
                                : "-",
         number(cap["front_us_median"]), slower, number(cap["step_us_median"])});
  }
  return aligned(table) + "  " + caps["text"].get<std::string>() + '\n';
}

std::string observer_lines(const Json& document) {
  std::string text;
  const Json pass = document.value("observed_pass", Json::object());
  for (const Json& arm : pass.value("cost", Json::array())) {
    const Json& cost = arm["observed_over_timed_step"];
    if (!cost["value"].is_number()) continue;
    text += fmt::format("  arm {}: a step takes {:.4f} of its timed length [{:.4f}, {:.4f}]\n",
                        arm["arm"].get<std::string>(), cost["value"].get<double>(), cost["low"].get<double>(),
                        cost["high"].get<double>());
  }
  return text;
}

std::string verdict_lines(const Json& document, bool all) {
  std::string text;
  for (const Json& comparison : document["comparisons"]) {
    text += fmt::format("{} against {}: {}\n", comparison["arms"][1].get<std::string>(),
                        comparison["arms"][0].get<std::string>(), comparison["text"].get<std::string>());
    if (!comparison.contains("chain") || (comparison["verdict"].is_null() && !all)) continue;
    int number = 0;
    for (const Json& link : comparison["chain"]["links"]) {
      text += fmt::format("  {} {}: {}: {}\n", ++number, link["link"].get<std::string>(),
                          link["status"].get<std::string>(), link["text"].get<std::string>());
    }
    for (const Json& rank : comparison["within_device"]) {
      if (!rank["far_over_near_ratio"].is_number()) continue;
      text += fmt::format("  rank {}: lookup far / near {:.4f}\n", rank["rank"].get<int>(),
                          rank["far_over_near_ratio"].get<double>());
    }
    if (comparison["advice"].is_string()) text += "  " + comparison["advice"].get<std::string>() + '\n';
  }
  for (const Json& hypothesis : document.value("hypotheses", Json::array())) {
    const auto standing = hypothesis["standing"].get<std::string>();
    if (standing == "not_testable" && !all) continue;
    text += fmt::format("{} ({}), {} against {}: {}: {}\n", hypothesis["id"].get<std::string>(),
                        hypothesis["statement"].get<std::string>(), hypothesis["arms"][1].get<std::string>(),
                        hypothesis["arms"][0].get<std::string>(), standing, hypothesis["why"].get<std::string>());
  }
  return text;
}

std::string result_tables(const Json& document, const std::string& folder, bool all_metrics) {
  std::string text =
      fmt::format("{}{}{}\n", document["name"].get<std::string>(),
                  document["question"].get<std::string>().empty() ? "" : ": ", document["question"].get<std::string>());
  text += arm_lines(document);
  text += '\n' + checks_line(document);
  const std::string figures = figures_table(document, all_metrics);
  if (!figures.empty()) text += '\n' + figures;
  const std::string rates = lookup_rates_table(document);
  if (!rates.empty()) text += "\nLookups beside the bare row gather\n" + rates;
  const std::string caps = grid_caps_table(document);
  if (!caps.empty()) text += "\nGrid caps\n" + caps;
  const std::string observer = observer_lines(document);
  if (!observer.empty()) text += "\nCost of the observed pass\n" + observer;
  const std::string placement = placement_table(document);
  if (!placement.empty()) text += "\nPages by NUMA node\n" + placement;
  const std::string ledger = ledger_table(document);
  if (!ledger.empty()) text += "\nMemory of the tables after load\n" + ledger;
  text += '\n';
  text += verdict_lines(document, all_metrics);
  for (const Json& warning : document["warnings"]) {
    text += fmt::format("warning: {}: {} {}\n", warning["code"].get<std::string>(), warning["text"].get<std::string>(),
                        warning["next_step"].get<std::string>());
  }
  for (const Json& failure : document["failures"])
    text += fmt::format("failure: {}\n", failure["text"].get<std::string>());
  text += fmt::format("Result{}: {}\n", document["complete"] == true ? "" : " (not complete)", folder);
  return text;
}

}  // namespace eb::cli
