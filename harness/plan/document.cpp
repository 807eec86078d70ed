#include "harness/plan/document.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "harness/base/error.h"
#include "harness/plan/paths.h"

namespace eb::plan {

namespace {

constexpr std::size_t kDeepest = 32;

// Walks the text before the document is built: remembers where a syntax error is, and finds keys given twice, which the
// document itself would silently merge.
class Reader : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool key(string_t& name) override {
    if (!objects_.back().insert(name).second) {
      fail(Exit::usage, "the key {} is given twice in one object", printable(name));
    }
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    const std::string_view before = std::string_view(text_).substr(0, position == 0 ? 0 : position - 1);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t start = before.rfind('\n');
    const std::size_t column = 1 + before.size() - (start == std::string_view::npos ? 0 : start + 1);
    fail(Exit::usage, "line {}, column {}: {}", line, column, reason(error.what()));
  }

 private:
  bool open() {
    objects_.emplace_back();
    if (objects_.size() > kDeepest) fail(Exit::usage, "nested deeper than {} levels", kDeepest);
    return true;
  }
  bool close() {
    objects_.pop_back();
    return true;
  }
  // The library's text without its own prefix and position.
  static std::string reason(const std::string& text) {
    for (const char* mark : {"syntax error", "number overflow"}) {
      const std::size_t at = text.find(mark);
      if (at != std::string::npos) return text.substr(at);
    }
    const std::size_t bracket = text.find("] ");
    return bracket == std::string::npos ? text : text.substr(bracket + 2);
  }

  const std::string& text_;
  std::vector<std::set<std::string>> objects_;  // keys seen, of every open object (lists: empty)
};

[[noreturn]] void unknown_key(const std::string& path) {
  fail(Exit::usage, "unknown key {}; nearest: {}", printable(path), nearest_key(path));
}

Json& child_object(Json& parent, const std::string& name, const std::string& path) {
  if (!parent.contains(name)) parent[name] = Json::object();
  Json& child = parent[name];
  if (!child.is_object()) fail(Exit::usage, "{}: expected an object", path);
  return child;
}

std::string join(const std::vector<std::string>& segments, std::size_t first, std::size_t last) {
  std::string text;
  for (std::size_t i = first; i < last; ++i) text += (text.empty() ? "" : ".") + segments[i];
  return text;
}

// The list a path steps into; a list that the file leaves out starts as its default.
Json& list_at(Json& parent, const std::string& name, const Key& key) {
  if (!parent.contains(name)) {
    if (!key.fallback.is_array()) {
      fail(Exit::usage, "{}: the scenario states no list; set the whole of it", key.path);
    }
    parent[name] = key.fallback;
  }
  Json& list = parent[name];
  if (!list.is_array()) fail(Exit::usage, "{}: expected {}", key.path, key.expected());
  return list;
}

Json& entry_at(Json& list, const std::string& index, const std::string& path) {
  if (!is_index(index)) unknown_key(path);
  const auto place = static_cast<std::size_t>(std::stoul(index));
  if (place >= list.size()) fail(Exit::usage, "{}: the list has {} entries, counted from 0", path, list.size());
  return list[place];
}

// Sets what lies inside the value of `key`, whose name is segments[at]. Returns the object to go on from, or null when
// the value was set.
Json* step_inside(Json& parent, const Key& key, const std::vector<std::string>& segments, std::size_t at,
                  const Json& value, const std::string& path) {
  const std::string& name = segments[at];
  const std::string here = join(segments, 0, at + 1);
  switch (key.type) {
    case Type::number_map:
    case Type::value_map:
      child_object(parent, name, here)[join(segments, at + 1, segments.size())] = value;
      return nullptr;
    case Type::override_map: {
      Json& controls = child_object(parent, name, here);
      if (at + 2 == segments.size()) {
        controls[segments[at + 1]] = value;
        return nullptr;
      }
      Json& control = child_object(controls, segments[at + 1], path);
      control[join(segments, at + 2, segments.size())] = value;
      return nullptr;
    }
    case Type::integers:
    case Type::texts:
      if (at + 2 != segments.size()) unknown_key(path);
      entry_at(list_at(parent, name, key), segments[at + 1], path) = value;
      return nullptr;
    case Type::objects: {
      Json& entry = entry_at(list_at(parent, name, key), segments[at + 1], path);
      if (!entry.is_object()) fail(Exit::usage, "{}: expected an object", join(segments, 0, at + 2));
      if (at + 2 == segments.size()) {
        entry = value;
        return nullptr;
      }
      return &entry;
    }
    default:
      unknown_key(path);
  }
}

void check_object(const Json& object, const std::string& prefix) {
  for (const auto& [name, value] : object.items()) {
    const std::string path = prefix.empty() ? name : prefix + "." + name;
    // A dot in a name would look like a path and be read by nobody.
    if (name.find('.') != std::string::npos) unknown_key(path);
    const Key* key = find_key(path);
    if (key != nullptr) {
      check_value(*key, path, value);
      if (key->type != Type::objects) continue;
      for (std::size_t i = 0; i < value.size(); ++i) check_object(value[i], path + "." + std::to_string(i));
    } else if (is_group(path)) {
      if (!value.is_object()) fail(Exit::usage, "{}: expected an object", path);
      check_object(value, path);
    } else {
      unknown_key(path);
    }
  }
}

std::string with_index(const std::string& path, std::size_t index) {
  std::string out = path;
  const std::size_t star = out.find('*');
  if (star != std::string::npos) out.replace(star, 1, std::to_string(index));
  return out;
}

bool is_experiment(const Key& key) { return key.path.starts_with("experiment."); }
bool is_item(const Key& key) { return key.path.find('*') != std::string::npos; }

void read_key(const Key& key, const std::string& path, const Json& document, Target& target) {
  if (!key.set) return;
  const Json* value = find_in_document(document, path);
  if (value == nullptr) {
    if (key.required) fail(Exit::usage, "{}: missing; expected {}", path, key.expected());
    if (key.inherits) return;
    value = &key.fallback;
  }
  try {
    key.set(target, *value);
  } catch (const Error& error) {
    fail(error.exit(), "{}: {}", path, error.what());
  }
}

// A bare word comes from the shell and may hold any bytes; JSON holds UTF-8 only.
Json bare_word(const Setting& setting) {
  Json word = setting.value;
  try {
    static_cast<void>(word.dump());
  } catch (const Json::type_error&) {
    fail(Exit::usage, "{}: the value is not UTF-8 text", setting.key);
  }
  return word;
}

}  // namespace

std::string printable(const std::string& text) {
  constexpr std::size_t kLongest = 120;
  const std::string cut = text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
  const std::string quoted = Json(cut).dump(-1, ' ', true, Json::error_handler_t::replace);
  // A plain name reads better without quotes.
  const bool plain = is_name(cut, kLongest + 3);
  return plain ? cut : quoted;
}

std::string resolve_path(const Target& target, const std::string& path) {
  if (path.empty()) fail(Exit::usage, "expected a path, found an empty text");
  if (target.folder == nullptr || target.folder->empty()) return path;
  return (std::filesystem::path(*target.folder) / path).lexically_normal().string();
}

Json parse_document(const std::string& text) {
  Reader reader(text);
  Json::sax_parse(text, &reader);
  Json document = Json::parse(text);
  if (!document.is_object()) fail(Exit::usage, "a scenario is a JSON object");
  return document;
}

void set_in_document(Json& document, const std::string& path, const Json& value) {
  const std::vector<std::string> segments = split_path(path);
  Json* node = &document;
  std::size_t at = 0;
  while (true) {
    const std::string here = join(segments, 0, at + 1);
    const Key* key = find_key(here);
    const bool last = at + 1 == segments.size();
    if (key != nullptr && last) {
      (*node)[segments[at]] = value;
      return;
    }
    if (key != nullptr) {
      node = step_inside(*node, *key, segments, at, value, path);
      if (node == nullptr) return;
      at += 2;
      continue;
    }
    if (!is_group(here)) unknown_key(path);
    if (last) fail(Exit::usage, "{}: holds several keys; name one, as in {}", path, nearest_key(path + ".a"));
    node = &child_object(*node, segments[at], here);
    ++at;
  }
}

void apply_setting(Json& document, const Setting& setting) {
  // The same reading as a file's, so that a key given twice in a value is an error here too.
  Json value = Json::parse(setting.value, nullptr, false);
  const Key* key = find_key(setting.key);
  const bool wants_text = key != nullptr && key->type == Type::text;
  if (value.is_discarded() || (wants_text && !value.is_string() && !value.is_null())) {
    value = bare_word(setting);
  } else if (value.is_structured()) {
    Reader reader(setting.value);
    Json::sax_parse(setting.value, &reader);
  }
  set_in_document(document, setting.key, value);
}

void check_document(const Json& document) { check_object(document, ""); }

const Json* find_in_document(const Json& document, const std::string& path) {
  const Json* node = &document;
  for (const std::string& segment : split_path(path)) {
    if (node->is_array() && is_index(segment)) {
      const auto place = static_cast<std::size_t>(std::stoul(segment));
      if (place >= node->size()) return nullptr;
      node = &(*node)[place];
    } else {
      if (!node->is_object()) return nullptr;
      const auto found = node->find(segment);
      if (found == node->end()) return nullptr;
      node = &*found;
    }
  }
  return node;
}

void read_document(const Json& document, const std::string& folder, Scenario& scenario, ExperimentSpec* experiment) {
  Target target{&scenario, experiment, 0, &folder};
  for (const Key& key : keys()) {
    if (is_experiment(key) && experiment == nullptr) continue;
    if (!is_item(key)) {
      read_key(key, key.path, document, target);
      continue;
    }
    // The list itself comes before its entries in the table, so that they are there. Entries of a default list are read
    // from the default.
    const Json* list = find_in_document(document, "workload.batches");
    const Key& list_key = *find_key("workload.batches");
    const Json fallback = list == nullptr ? Json{{"workload", {{"batches", list_key.fallback}}}} : Json();
    for (target.item = 0; target.item < scenario.workload.batches.size(); ++target.item) {
      read_key(key, with_index(key.path, target.item), list == nullptr ? fallback : document, target);
    }
  }
}

Json write_document(Scenario scenario, const ExperimentSpec* experiment) {
  ExperimentSpec copy = experiment == nullptr ? ExperimentSpec{} : *experiment;
  Target target{&scenario, &copy, 0, nullptr};
  Json document = Json::object();
  for (const Key& key : keys()) {
    if (!key.get || (is_experiment(key) && experiment == nullptr)) {
      if (key.type != Type::objects) continue;
      document["workload"]["batches"] = Json::array();
      for (std::size_t i = 0; i < scenario.workload.batches.size(); ++i) {
        document["workload"]["batches"].push_back(Json::object());
      }
      continue;
    }
    if (!is_item(key)) {
      set_in_document(document, key.path, key.get(target));
      continue;
    }
    for (target.item = 0; target.item < scenario.workload.batches.size(); ++target.item) {
      set_in_document(document, with_index(key.path, target.item), key.get(target));
    }
  }
  return document;
}

}  // namespace eb::plan
