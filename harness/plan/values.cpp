#include "harness/plan/values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "harness/base/error.h"
#include "harness/plan/nearest.h"

namespace eb::plan {

namespace {

constexpr int kMaxThreads = 4096;

template <typename E>
const char* text_of(const Names<E>& names, E value) noexcept {
  for (const auto& [text, candidate] : names) {
    if (candidate == value) return text;
  }
  return "?";
}

int parse_number(std::string_view text, int low, int high, const char* what) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    fail(Exit::usage, "{} is a number from {} to {}, found \"{}\"", what, low, high, text);
  }
  return value;
}

// Calls `item` with each piece between commas; an empty piece is passed on, for its reader to refuse.
template <typename Item>
void for_each_piece(std::string_view text, Item item) {
  while (true) {
    const std::size_t comma = text.find(',');
    item(text.substr(0, comma));
    if (comma == std::string_view::npos) return;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::pair<int, int>> parse_weights(std::string_view text) {
  std::vector<std::pair<int, int>> weights;
  for_each_piece(text, [&](std::string_view piece) {
    const std::size_t equals = piece.find('=');
    if (equals == std::string_view::npos) {
      fail(Exit::usage, "a weight is written node=weight (weighted:0=3,1=1), found \"{}\"", piece);
    }
    const int node = parse_number(piece.substr(0, equals), 0, kMaxNode, "a NUMA node");
    const int weight = parse_number(piece.substr(equals + 1), 1, 255, "a weight");
    if (std::any_of(weights.begin(), weights.end(), [&](const auto& known) { return known.first == node; })) {
      fail(Exit::usage, "NUMA node {} has two weights", node);
    }
    weights.emplace_back(node, weight);
  });
  std::sort(weights.begin(), weights.end());
  return weights;
}

}  // namespace

const Names<TableMode>& table_modes() {
  static const Names<TableMode> names{
      {"shared", TableMode::shared}, {"private", TableMode::private_}, {"dp_sharded", TableMode::dp_sharded}};
  return names;
}
const Names<Layout>& layouts() {
  static const Names<Layout> names{{"split", Layout::split}, {"interleaved", Layout::interleaved}};
  return names;
}
const Names<BackendKind>& backend_kinds() {
  static const Names<BackendKind> names{{"auto", BackendKind::auto_},
                                        {"cpu", BackendKind::cpu},
                                        {"cuda", BackendKind::cuda},
                                        {"fake", BackendKind::fake}};
  return names;
}
const Names<Backing>& backings() {
  static const Names<Backing> names{{"shm", Backing::shm},
                                    {"memfd", Backing::memfd},
                                    {"hugetlb-2m", Backing::hugetlb_2m},
                                    {"hugetlb-1g", Backing::hugetlb_1g},
                                    {"shm-thp", Backing::shm_thp},
                                    {"anon", Backing::anon},
                                    {"anon-thp", Backing::anon_thp},
                                    {"cuda-host-numa", Backing::cuda_host_numa},
                                    {"hbm", Backing::hbm},
                                    {"stub", Backing::stub}};
  return names;
}
const Names<PolicyKind>& policy_kinds() {
  static const Names<PolicyKind> names{
      {"none", PolicyKind::none},           {"stock", PolicyKind::stock},           {"bind", PolicyKind::bind},
      {"preferred", PolicyKind::preferred}, {"interleave", PolicyKind::interleave}, {"weighted", PolicyKind::weighted},
      {"consumer", PolicyKind::consumer}};
  return names;
}
const Names<PinnedRounding>& pinned_roundings() {
  static const Names<PinnedRounding> names{{"none", PinnedRounding::none},
                                           {"power-of-two", PinnedRounding::power_of_two}};
  return names;
}
const Names<Copies>& copies_kinds() {
  static const Names<Copies> names{{"one", Copies::one}, {"per-numa-node", Copies::per_numa_node}};
  return names;
}
const Names<PretouchKind>& pretouch_kinds() {
  static const Names<PretouchKind> names{
      {"none", PretouchKind::none}, {"leader", PretouchKind::leader}, {"parallel", PretouchKind::parallel}};
  return names;
}
const Names<RegisterOrder>& register_orders() {
  static const Names<RegisterOrder> names{{"concurrent", RegisterOrder::concurrent},
                                          {"serial", RegisterOrder::serial},
                                          {"leader-first", RegisterOrder::leader_first}};
  return names;
}
const Names<Submit>& submits() {
  static const Names<Submit> names{{"early", Submit::early}, {"at_consume", Submit::at_consume}};
  return names;
}
const Names<Streams>& streams() {
  static const Names<Streams> names{{"fifo", Streams::fifo}, {"per_layer", Streams::per_layer}};
  return names;
}
const Names<Order>& orders() {
  static const Names<Order> names{{"token", Order::token}, {"table", Order::table}};
  return names;
}
const Names<WorkloadKind>& workload_kinds() {
  static const Names<WorkloadKind> names{{"lookup", WorkloadKind::lookup}, {"steps", WorkloadKind::steps}};
  return names;
}
const Names<TokenKind>& token_kinds() {
  static const Names<TokenKind> names{{"uniform", TokenKind::uniform},
                                      {"zipf_ngram", TokenKind::zipf_ngram},
                                      {"constant", TokenKind::constant},
                                      {"file", TokenKind::file}};
  return names;
}
const Names<IndexState>& index_states() {
  static const Names<IndexState> names{{"rotated", IndexState::rotated}, {"repeat", IndexState::repeat}};
  return names;
}
const Names<engram::RowFormat>& row_formats() {
  static const Names<engram::RowFormat> names{{"e4m3_ue8m0", engram::RowFormat::e4m3_ue8m0},
                                              {"bf16", engram::RowFormat::bf16}};
  return names;
}

const char* name(TableMode value) noexcept { return text_of(table_modes(), value); }
const char* name(Layout value) noexcept { return text_of(layouts(), value); }
const char* name(BackendKind value) noexcept { return text_of(backend_kinds(), value); }
const char* name(Backing value) noexcept { return text_of(backings(), value); }
const char* name(PolicyKind value) noexcept { return text_of(policy_kinds(), value); }
const char* name(PinnedRounding value) noexcept { return text_of(pinned_roundings(), value); }
const char* name(Copies value) noexcept { return text_of(copies_kinds(), value); }
const char* name(PretouchKind value) noexcept { return text_of(pretouch_kinds(), value); }
const char* name(RegisterOrder value) noexcept { return text_of(register_orders(), value); }
const char* name(Submit value) noexcept { return text_of(submits(), value); }
const char* name(Streams value) noexcept { return text_of(streams(), value); }
const char* name(Order value) noexcept { return text_of(orders(), value); }
const char* name(WorkloadKind value) noexcept { return text_of(workload_kinds(), value); }
const char* name(TokenKind value) noexcept { return text_of(token_kinds(), value); }
const char* name(IndexState value) noexcept { return text_of(index_states(), value); }

std::vector<int> nodes_as_written(std::string_view text) {
  std::vector<int> nodes;
  for_each_piece(text, [&](std::string_view piece) {
    const std::size_t dash = piece.find('-');
    const std::string_view from = piece.substr(0, dash);
    const std::string_view to = dash == std::string_view::npos ? from : piece.substr(dash + 1);
    if (from.empty() || to.empty()) {
      fail(Exit::usage, "expected NUMA nodes, as in 0, 0,1 or 0-3, found \"{}\"", text);
    }
    const int first = parse_number(from, 0, kMaxNode, "a NUMA node");
    const int last = parse_number(to, 0, kMaxNode, "a NUMA node");
    if (last < first) fail(Exit::usage, "the range of NUMA nodes \"{}\" runs backwards", piece);
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  });
  const std::set<int> distinct(nodes.begin(), nodes.end());
  if (distinct.size() < nodes.size()) {
    fail(Exit::usage, "the list of NUMA nodes \"{}\" names a node twice", text);
  }
  return nodes;
}

std::vector<int> parse_nodes(std::string_view text) {
  std::vector<int> nodes = nodes_as_written(text);
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

Policy parse_policy(const std::string& text) {
  const std::string_view all = text;
  const std::size_t colon = all.find(':');
  const std::string_view word = all.substr(0, colon);
  const bool has_argument = colon != std::string_view::npos;
  const std::string_view argument = has_argument ? all.substr(colon + 1) : std::string_view{};
  Policy policy;
  policy.text = text;
  const auto& known = policy_kinds();
  const auto found = std::find_if(known.begin(), known.end(), [&](const auto& entry) { return entry.first == word; });
  if (found == known.end()) {
    std::vector<std::string> names;
    for (const auto& entry : known) names.emplace_back(entry.first);
    fail(Exit::usage, "unknown policy \"{}\"; nearest: {}", text, nearest(word, names));
  }
  policy.kind = found->second;
  const bool takes_nodes =
      policy.kind == PolicyKind::bind || policy.kind == PolicyKind::preferred || policy.kind == PolicyKind::interleave;
  const bool takes_argument = takes_nodes || policy.kind == PolicyKind::weighted;
  if (takes_argument != has_argument) {
    fail(Exit::usage, "policy {} is written {}, found \"{}\"", word,
         policy.kind == PolicyKind::weighted ? "weighted:node=weight,..."
         : takes_argument                    ? fmt::format("{}:nodes, as in {}:0", word, word)
                                             : std::string(word),
         text);
  }
  if (policy.kind == PolicyKind::weighted) policy.weights = parse_weights(argument);
  if (policy.kind == PolicyKind::interleave && argument == "all") {
    policy.all_nodes = true;
  } else if (takes_nodes) {
    policy.nodes = parse_nodes(argument);
  }
  if (policy.kind == PolicyKind::preferred && policy.nodes.size() != 1) {
    fail(Exit::usage, "policy preferred takes one NUMA node, found \"{}\"", text);
  }
  return policy;
}

GridCap parse_grid_cap(const std::string& text) {
  if (text == "half") return {GridCap::Kind::fraction, 0.5, text};
  if (text == "all") return {GridCap::Kind::fraction, 1.0, text};
  fail(Exit::usage, "expected a number of programs, a fraction of the units below 1, half or all, found \"{}\"", text);
}

GridCap grid_cap_of(double value) {
  if (value > 0 && value < 1) return {GridCap::Kind::fraction, value, fmt::format("{}", value)};
  if (value < 1 || value > 1e6 || value != std::floor(value)) {
    fail(Exit::usage, "expected a number of programs from 1 to 1000000 or a fraction between 0 and 1, found {}", value);
  }
  return {GridCap::Kind::programs, value, fmt::format("{}", static_cast<std::int64_t>(value))};
}

std::pair<PretouchKind, int> parse_pretouch(const std::string& text) {
  if (text == "none") return {PretouchKind::none, 0};
  if (text == "leader") return {PretouchKind::leader, 0};
  if (text == "parallel") return {PretouchKind::parallel, 0};
  const std::string_view prefix = "parallel:";
  if (text.starts_with(prefix)) {
    return {PretouchKind::parallel,
            parse_number(std::string_view(text).substr(prefix.size()), 1, kMaxThreads, "the number of threads")};
  }
  const std::vector<std::string> names{"none", "leader", "parallel"};
  fail(Exit::usage, "expected none, leader, parallel or parallel:threads, found \"{}\"; nearest: {}", text,
       nearest(text, names));
}

std::int64_t GridCap::programs(int units) const noexcept {
  const double wanted = kind == Kind::programs ? value : std::floor(static_cast<double>(units) * value);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(wanted));
}

}  // namespace eb::plan
