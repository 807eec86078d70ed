// Token files and token maps: the two kinds of data that users bring.
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "harness/base/error.h"
#include "harness/replay/token_model.h"

namespace eb::replay {

namespace {

std::string read_bytes(const std::string& path, const char* what) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(Exit::usage, "{} {}: cannot be opened", what, path);
  try {
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.bad()) return bytes;
  } catch (const std::ios_base::failure&) {  // libstdc++ throws where the path is a folder
  }
  fail(Exit::usage, "{} {}: cannot be read", what, path);
}

// Little-endian uint32, each a token id that int32 can hold.
std::vector<std::int32_t> parse_binary(const std::string& bytes, const std::string& path, const char* what) {
  if (bytes.size() % 4 != 0) {
    fail(Exit::usage, "{} {}: {} bytes are no whole number of little-endian 32-bit ids", what, path, bytes.size());
  }
  std::vector<std::int32_t> ids(bytes.size() / 4);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::uint32_t value = 0;
    for (std::size_t b = 0; b < 4; ++b) value |= std::uint32_t{static_cast<unsigned char>(bytes[4 * i + b])} << (8 * b);
    if (value > static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max())) {
      fail(Exit::usage, "{} {}: entry {} is {}, beyond every vocabulary", what, path, i, value);
    }
    ids[i] = static_cast<std::int32_t>(value);
  }
  return ids;
}

// `smallest`: 0, or -1 where a token may be dead.
std::vector<std::int32_t> parse_json(const std::string& text, const std::string& path, const char* what,
                                     std::int64_t smallest) {
  std::vector<std::int32_t> ids;
  try {
    const auto list = nlohmann::json::parse(text);
    if (!list.is_array())
      fail(Exit::usage, "{} {}: a JSON list of integers is needed, found {}", what, path, list.type_name());
    ids.reserve(list.size());
    for (const auto& entry : list) {
      if (!entry.is_number_integer() || entry.get<std::int64_t>() < smallest ||
          entry.get<std::int64_t>() > std::numeric_limits<std::int32_t>::max()) {
        fail(Exit::usage, "{} {}: entry {} is {}, no id", what, path, ids.size(), entry.dump());
      }
      ids.push_back(entry.get<std::int32_t>());
    }
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::usage, "{} {}: {}", what, path, error.what());
  }
  return ids;
}

// A binary file could begin with the byte of '[' by chance, hardly end with ']' as well.
bool looks_like_json(const std::string& bytes, const std::string& path) {
  if (path.ends_with(".json")) return true;
  const auto first = bytes.find_first_not_of(" \t\r\n");
  const auto last = bytes.find_last_not_of(" \t\r\n");
  return first != std::string::npos && bytes[first] == '[' && bytes[last] == ']';
}

}  // namespace

std::vector<std::int32_t> read_token_file(const std::string& path) {
  auto ids = parse_binary(read_bytes(path, "token file"), path, "token file");
  if (ids.empty()) fail(Exit::usage, "token file {}: it is empty", path);
  return ids;
}

std::vector<std::int32_t> read_tokens(const std::string& path) {
  std::string bytes;
  if (path == "-") {
    bytes.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  } else {
    bytes = read_bytes(path, "tokens");
  }
  auto ids = looks_like_json(bytes, path) ? parse_json(bytes, path, "tokens", engram::kDeadToken)
                                          : parse_binary(bytes, path, "tokens");
  if (ids.empty()) fail(Exit::usage, "tokens {}: there are none", path);
  return ids;
}

engram::TokenMap read_token_map(const std::string& spec, const engram::Model& model) {
  if (spec == "identity") return engram::TokenMap::identity(model);
  const std::string bytes = read_bytes(spec, "token map");
  auto map =
      looks_like_json(bytes, spec) ? parse_json(bytes, spec, "token map", 0) : parse_binary(bytes, spec, "token map");
  try {
    return engram::TokenMap::from_table(model, std::move(map));
  } catch (const Error& error) {
    fail(error.exit(), "{} (file {})", error.what(), spec);
  }
}

}  // namespace eb::replay
