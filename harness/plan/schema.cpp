// The JSON Schema (draft 2020-12) of the scenario file, from the key table. It states form: types, ranges and names.
// What goes together is checked by checks.cpp alone.
#include "harness/plan/document.h"
#include "harness/plan/keys.h"

namespace eb::plan {

namespace {

Json integer_schema(const Key& key) { return Json{{"type", "integer"}, {"minimum", key.low}, {"maximum", key.high}}; }

Json number_schema(const Key& key) {
  return Json{{"type", "number"},
              {key.low_excluded ? "exclusiveMinimum" : "minimum", key.number_low},
              {"maximum", key.number_high}};
}

Json text_schema(const Key& key) {
  Json schema{{"type", "string"}};
  if (!key.values.empty()) schema["enum"] = key.values;
  if (!key.pattern.empty()) schema["pattern"] = key.pattern;
  return schema;
}

Json list_schema(const Key& key, Json items) {
  return Json{{"type", "array"}, {"items", std::move(items)}, {"minItems", key.min_items}, {"maxItems", key.max_items}};
}

Json map_schema(const Key& key, Json values) {
  return Json{{"type", "object"}, {"additionalProperties", std::move(values)}, {"maxProperties", key.max_items}};
}

Json value_schema(const Key& key) {
  switch (key.type) {
    case Type::boolean:
      return Json{{"type", "boolean"}};
    case Type::integer:
      return integer_schema(key);
    case Type::number:
      return number_schema(key);
    case Type::text:
      return text_schema(key);
    case Type::integers:
      return list_schema(key, integer_schema(key));
    case Type::texts:
      return list_schema(key, Json{{"type", "string"}});
    case Type::number_or_text:
      return Json{{"anyOf", Json::array({number_schema(key), text_schema(key)})}};
    case Type::text_or_integers: {
      Json list = list_schema(key, integer_schema(key));
      list["minItems"] = 1;
      return Json{{"anyOf", Json::array({text_schema(key), list})}};
    }
    case Type::nodes: {
      Json list = list_schema(key, integer_schema(key));
      list["minItems"] = 1;
      return Json{{"anyOf", Json::array({text_schema(key), integer_schema(key), list})}};
    }
    case Type::readers: {
      Key count = key;
      count.low = 1;
      Json list = list_schema(key, integer_schema(key));
      list["minItems"] = 1;
      return Json{{"anyOf", Json::array({text_schema(key), integer_schema(count), list})}};
    }
    case Type::number_map:
      return map_schema(key, number_schema(key));
    case Type::value_map: {
      Json schema = map_schema(key, true);
      schema["minProperties"] = 1;
      return schema;
    }
    case Type::override_map:
      return map_schema(key, Json{{"type", "object"}, {"minProperties", 1}});
    case Type::objects:
      return list_schema(key,
                         Json{{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}});
  }
  return Json();
}

Json key_schema(const Key& key) {
  Json schema = value_schema(key);
  if (key.nullable) schema = Json{{"anyOf", Json::array({std::move(schema), Json{{"type", "null"}}})}};
  schema["description"] = key.unit.empty() ? key.doc : key.doc + " Unit: " + key.unit + ".";
  if (!key.required && !key.inherits) schema["default"] = key.fallback;
  return schema;
}

// The schema object that holds the members of `segments` (without the last), made on the way.
Json& holder(Json& root, const std::vector<std::string>& segments) {
  Json* node = &root;
  for (std::size_t i = 0; i + 1 < segments.size(); ++i) {
    if (segments[i] == "*") {
      node = &(*node)["items"];
      continue;
    }
    Json& properties = (*node)["properties"];
    if (!properties.contains(segments[i])) {
      properties[segments[i]] =
          Json{{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
    }
    node = &properties[segments[i]];
  }
  return *node;
}

}  // namespace

std::string scenario_schema() {
  Json root{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
            {"title", "engram-bench scenario"},
            {"description", "Generated from the table of keys: engram-bench plan --print-schema."},
            {"type", "object"},
            {"additionalProperties", false},
            {"required", Json::array()},
            {"properties", Json::object()}};
  for (const Key& key : keys()) {
    const std::vector<std::string> segments = split_path(key.path);
    holder(root, segments)["properties"][segments.back()] = key_schema(key);
    if (key.required) root["required"].push_back(key.path);
  }
  return root.dump(2) + "\n";
}

}  // namespace eb::plan
