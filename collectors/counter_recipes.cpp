#include "collectors/counter_recipes.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "harness/base/error.h"

namespace eb::collectors {

std::vector<std::pair<std::string_view, std::string_view>> embedded_recipes();  // made of recipes/*.json by the build

namespace {

using Json = nlohmann::json;

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

template <typename Number>
bool to_number(std::string_view text, Number& value) {
  int base = 10;
  if (text.starts_with("0x")) {
    base = 16;
    text.remove_prefix(2);
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc{} && end == text.data() + text.size();
}

bool is_for(const Json& cpu, const CpuModel& model) {
  if (cpu.at("vendor").get<std::string>() != model.vendor || cpu.at("family").get<int>() != model.family) return false;
  for (const Json& range : cpu.at("models")) {
    if (model.model >= range.at(0).get<int>() && model.model <= range.at(1).get<int>()) return true;
  }
  return false;
}

CounterRecipe counter_of(const Json& json) {
  CounterRecipe counter{
      json.at("name"),  json.at("object"), json.at("direction"), json.at("units"), {}, json.at("bytes_per_count"),
      json.at("source")};
  for (const Json& event : json.at("events")) {
    EventFields& fields = counter.events.emplace_back();
    for (const auto& [name, value] : event.items()) {
      if (!to_number(value.get<std::string>(), fields[name])) {
        fail(Exit::failure, "counter {}: {} is {}, not a number", counter.name, name, value.dump());
      }
    }
  }
  if (counter.events.empty() || !(counter.bytes_per_count > 0)) {
    fail(Exit::failure, "counter {}: it has no events, or no bytes a count", counter.name);
  }
  return counter;
}

}  // namespace

CpuModel parse_cpuinfo(std::string_view text) {
  CpuModel cpu;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() && !cpu.vendor.empty()) break;  // the next CPU
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view key = trimmed(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (key == "vendor_id") cpu.vendor = value;
    if (key == "cpu family") (void)to_number(value, cpu.family);
    if (key == "model") (void)to_number(value, cpu.model);
  }
  return cpu;
}

std::string text(const CpuModel& cpu) {
  if (cpu.vendor.empty()) return "a CPU that /proc/cpuinfo does not name";
  return fmt::format("{} family {} model {}", cpu.vendor, cpu.family, cpu.model);
}

std::optional<CpuRecipe> parse_recipe(std::string_view file, std::string_view json, const CpuModel& cpu) {
  try {
    const Json document = Json::parse(json);
    if (!is_for(document.at("cpu"), cpu)) return std::nullopt;
    CpuRecipe recipe;
    recipe.file = file;
    recipe.title = document.at("title");
    for (const Json& one : document.at("counters")) recipe.counters.push_back(counter_of(one));
    for (const Json& one : document.at("absent")) {
      recipe.absent.push_back({one.at("name"), one.at("object"), one.at("direction"), one.at("reason")});
    }
    return recipe;
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::failure, "counter recipe {}: {}", file, error.what());
  }
}

std::optional<CpuRecipe> recipe_for(const CpuModel& cpu) {
  for (const auto& [file, json] : embedded_recipes()) {
    if (auto recipe = parse_recipe(file, json, cpu)) return recipe;
  }
  return std::nullopt;
}

std::optional<FieldBits> parse_format(std::string_view text) {
  text = trimmed(text);
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  FieldBits bits;
  const std::string_view word = text.substr(0, colon);
  if (word == "config1") {
    bits.word = 1;
  } else if (word == "config2") {
    bits.word = 2;
  } else if (word != "config") {
    return std::nullopt;
  }
  for (std::string_view rest = text.substr(colon + 1); !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view range = rest.substr(0, comma);
    const std::size_t dash = range.find('-');
    int first = 0;
    if (!to_number(range.substr(0, dash), first)) return std::nullopt;
    int last = first;
    if (dash != std::string_view::npos && !to_number(range.substr(dash + 1), last)) return std::nullopt;
    if (first < 0 || last < first || last > 63) return std::nullopt;
    bits.ranges.emplace_back(first, last);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  if (bits.ranges.empty()) return std::nullopt;
  return bits;
}

bool place(std::uint64_t value, const FieldBits& bits, std::uint64_t (&words)[3]) {
  for (const auto& [first, last] : bits.ranges) {
    for (int bit = first; bit <= last; ++bit) {
      words[bits.word] |= (value & 1U) << static_cast<unsigned>(bit);
      value >>= 1U;
    }
  }
  return value == 0;
}

}  // namespace eb::collectors
