// Short forms that make rows of the key table. `ref` maps a Target to the field, so that one expression gives both the
// setter and the getter. Internal to harness/plan.
#pragma once

#include <string>
#include <utility>

#include "harness/base/error.h"
#include "harness/plan/keys.h"
#include "harness/plan/unbuilt.h"
#include "harness/plan/values.h"

namespace eb::plan {

template <typename Ref>
Key plain_key(const char* path, Type type, Json fallback, const char* doc, Ref ref) {
  Key key;
  key.path = path;
  key.type = type;
  key.fallback = std::move(fallback);
  key.doc = doc;
  key.set = [ref](Target& target, const Json& value) {
    auto& field = ref(target);
    field = value.get<std::remove_reference_t<decltype(field)>>();
  };
  key.get = [ref](Target& target) { return Json(ref(target)); };
  return key;
}

template <typename Ref>
Key boolean_key(const char* path, bool fallback, const char* doc, Ref ref) {
  return plain_key(path, Type::boolean, fallback, doc, ref);
}

// An integer may be written 2e2 or 8.0: JSON knows one kind of number.
template <typename Ref>
Key integer_key(const char* path, std::int64_t low, std::int64_t high, Json fallback, const char* doc, Ref ref) {
  Key key = plain_key(path, Type::integer, std::move(fallback), doc, ref);
  key.low = low;
  key.high = high;
  key.set = [ref](Target& target, const Json& value) {
    auto& field = ref(target);
    using Field = std::remove_reference_t<decltype(field)>;
    field = value.is_number_float() ? static_cast<Field>(value.get<double>()) : value.get<Field>();
  };
  return key;
}

template <typename Ref>
Key integers_key(const char* path, std::int64_t low, std::int64_t high, std::size_t min_items, Json fallback,
                 const char* doc, Ref ref) {
  Key key = plain_key(path, Type::integers, std::move(fallback), doc, ref);
  key.low = low;
  key.high = high;
  key.min_items = min_items;
  key.set = [ref](Target& target, const Json& value) {
    auto& field = ref(target);
    using Field = typename std::remove_reference_t<decltype(field)>::value_type;
    field.clear();
    for (const Json& entry : value) {
      field.push_back(entry.is_number_float() ? static_cast<Field>(entry.template get<double>())
                                              : entry.template get<Field>());
    }
  };
  return key;
}

template <typename Ref>
Key number_key(const char* path, double low, double high, Json fallback, const char* doc, Ref ref) {
  Key key = plain_key(path, Type::number, std::move(fallback), doc, ref);
  key.number_low = low;
  key.number_high = high;
  return key;
}

template <typename Ref>
Key text_key(const char* path, Json fallback, const char* doc, Ref ref) {
  return plain_key(path, Type::text, std::move(fallback), doc, ref);
}

// One of `names`; `unbuilt` are further values that the format knows and this version refuses.
template <typename E, typename Ref>
Key enum_key(const char* path, const Names<E>& names, const char* fallback, const char* doc, Ref ref,
             const std::vector<std::string>& unbuilt = {}) {
  Key key;
  key.path = path;
  key.type = Type::text;
  if (fallback != nullptr) key.fallback = fallback;
  key.doc = doc;
  for (const auto& entry : names) key.values.emplace_back(entry.first);
  key.values.insert(key.values.end(), unbuilt.begin(), unbuilt.end());
  key.set = [ref, &names, path = key.path](Target& target, const Json& value) {
    const auto& text = value.get_ref<const std::string&>();
    for (const auto& [name, candidate] : names) {
      if (text == name) {
        ref(target) = candidate;
        return;
      }
    }
    refuse_unbuilt(path, text);
  };
  key.get = [ref, &names](Target& target) {
    for (const auto& [name, candidate] : names) {
      if (ref(target) == candidate) return Json(name);
    }
    return Json();
  };
  return key;
}

// A text with a grammar of its own: `parse` makes the value, `print` writes it as it was read.
template <typename Parse, typename Print>
Key form_key(const char* path, const char* fallback, const char* form, const char* pattern, const char* doc,
             Parse parse, Print print) {
  Key key;
  key.path = path;
  key.type = Type::text;
  key.fallback = fallback;
  key.form = form;
  key.pattern = pattern;
  key.doc = doc;
  key.set = [parse](Target& target, const Json& value) { parse(target, value.get_ref<const std::string&>()); };
  key.get = [print](Target& target) { return Json(print(target)); };
  return key;
}

inline Key with_unit(Key key, const char* unit) {
  key.unit = unit;
  return key;
}
// A geometry key: without it, what the preset says.
inline Key from_preset(Key key) {
  key.inherits = true;
  return key;
}

}  // namespace eb::plan
