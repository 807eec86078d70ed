// Texts of a scenario file <-> typed values: enumerations, policies, grid caps, pre-touch. Internal to harness/plan.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/plan/scenario.h"

namespace eb::plan {

template <typename E>
using Names = std::vector<std::pair<const char*, E>>;

[[nodiscard]] const Names<TableMode>& table_modes();
[[nodiscard]] const Names<Layout>& layouts();
[[nodiscard]] const Names<BackendKind>& backend_kinds();
[[nodiscard]] const Names<Backing>& backings();
[[nodiscard]] const Names<PolicyKind>& policy_kinds();
[[nodiscard]] const Names<PinnedRounding>& pinned_roundings();
[[nodiscard]] const Names<Copies>& copies_kinds();
[[nodiscard]] const Names<PretouchKind>& pretouch_kinds();
[[nodiscard]] const Names<RegisterOrder>& register_orders();
[[nodiscard]] const Names<Submit>& submits();
[[nodiscard]] const Names<Streams>& streams();
[[nodiscard]] const Names<Order>& orders();
[[nodiscard]] const Names<WorkloadKind>& workload_kinds();
[[nodiscard]] const Names<TokenKind>& token_kinds();
[[nodiscard]] const Names<IndexState>& index_states();
[[nodiscard]] const Names<engram::RowFormat>& row_formats();

inline constexpr int kMaxNode = 1023;  // MAX_NUMNODES of the largest common kernel configuration, less one

// "0", "0,2", "3,0-1": numactl's syntax, absolute numbers below 1024, each once, in the order of the text. Errors:
// Error(usage).
[[nodiscard]] std::vector<int> nodes_as_written(std::string_view text);
// The same, ascending.
[[nodiscard]] std::vector<int> parse_nodes(std::string_view text);
// Errors of the following: Error(usage) that says how such a value is written.
[[nodiscard]] Policy parse_policy(const std::string& text);
[[nodiscard]] GridCap parse_grid_cap(const std::string& text);
[[nodiscard]] GridCap grid_cap_of(double value);
[[nodiscard]] std::pair<PretouchKind, int> parse_pretouch(const std::string& text);

}  // namespace eb::plan
