// The scenario file as a JSON document: reading with positions, setting by path, and the way from a document to the
// typed scenario and back. Internal to harness/plan.
#pragma once

#include <string>

#include "harness/plan/keys.h"

namespace eb::plan {

// Errors: Error(usage): syntax with line and column, a key that an object has twice, nesting beyond 32.
[[nodiscard]] Json parse_document(const std::string& text);

// Sets `path` ("workload.batches.0.decode") to `value`, making the objects on the way. Errors: Error(usage): unknown
// key with the nearest one, an index beyond the list.
void set_in_document(Json& document, const std::string& path, const Json& value);
// As above from a command line: JSON, or a bare word taken as a text; a text key takes any word as it is.
void apply_setting(Json& document, const Setting& setting);

// Every key known, every value of its type and in range. Errors: Error(usage).
void check_document(const Json& document);

// Reads a checked document; absent keys take their default. `experiment` may be null.
void read_document(const Json& document, const std::string& folder, Scenario& scenario, ExperimentSpec* experiment);
// Every key with its value; `experiment` may be null, its arms and controls are not written.
[[nodiscard]] Json write_document(Scenario scenario, const ExperimentSpec* experiment);

// The value at `path`; null pointer where it is absent.
[[nodiscard]] const Json* find_in_document(const Json& document, const std::string& path);

// A name from a file, safe to print: quoted, escaped, cut.
[[nodiscard]] std::string printable(const std::string& text);

}  // namespace eb::plan
