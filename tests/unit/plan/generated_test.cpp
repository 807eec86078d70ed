// The checked-in schema and reference page are what the key table gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "harness/base/os.h"
#include "harness/plan/document.h"
#include "harness/plan/keys.h"
#include "harness/plan/unbuilt.h"

namespace eb::plan {
namespace {

// EB_SOURCE_ROOT: the source folder, from the build.
std::string source_file(const char* path) { return read_file(std::string(EB_SOURCE_ROOT) + "/" + path); }

TEST(Generated, SchemaIsTheOneCheckedIn) {
  EXPECT_EQ(source_file("scenarios/schema/scenario.schema.json"), scenario_schema())
      << "renew it: engram-bench plan --print-schema > scenarios/schema/scenario.schema.json";
}

TEST(Generated, ReferenceIsTheOneCheckedIn) {
  const std::string page = source_file("docs/scenario.md");
  const std::string begin = "<!-- generated: begin -->\n";
  const std::string end = "<!-- generated: end -->";
  const std::size_t from = page.find(begin);
  const std::size_t to = page.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(page.substr(from + begin.size(), to - from - begin.size()), scenario_reference())
      << "renew it: put the output of engram-bench plan --print-reference between the marks of docs/scenario.md";
}

TEST(Keys, EachHasATextAPlaceAndAFittingDefault) {
  std::set<std::string> paths;
  for (const Key& key : keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " is there twice";
    EXPECT_GT(key.doc.size(), 5u) << key.path;
    EXPECT_FALSE(key.expected().empty()) << key.path;
    if (!key.required && !key.inherits && !(key.fallback.is_null() && key.nullable)) {
      const bool arms = key.type == Type::value_map || key.type == Type::override_map;
      EXPECT_TRUE(arms || key.set) << key.path;
      EXPECT_NO_THROW(check_value(key, key.path, key.fallback)) << key.path;
    }
  }
}

// A default that the file states explicitly changes nothing.
TEST(Keys, StatedDefaultsAreTheDefaults) {
  Json document = Json{{"name", "x"}};
  for (const Key& key : keys()) {
    if (key.required || key.inherits || key.path.find('*') != std::string::npos || !key.set) continue;
    set_in_document(document, key.path, key.fallback);
  }
  EXPECT_EQ(parse_plan(document.dump(), "", {}).sha256, parse_plan(R"({"name": "x"})", "", {}).sha256);
}

TEST(Keys, UnbuiltValuesAreKnownToTheirKeys) {
  for (const Unbuilt& entry : unbuilt()) {
    const Key* key = find_key(entry.path);
    ASSERT_NE(key, nullptr) << entry.path;
    if (!key->values.empty()) {
      EXPECT_THAT(key->values, ::testing::Contains(entry.value)) << entry.path;
    }
  }
}

}  // namespace
}  // namespace eb::plan
