#include "harness/plan/validity.h"

#include <algorithm>

#include "harness/base/error.h"
#include "harness/plan/values.h"

namespace eb::plan {

namespace {

template <typename T>
bool has(const std::vector<T>& list, T value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <typename T>
std::vector<std::string> names_of(const std::vector<T>& values) {
  std::vector<std::string> names;
  for (const T value : values) names.emplace_back(name(value));
  return names;
}

// Values of one key in the blocks that `fits` takes, each once, in the table's order.
template <typename T, typename Fits>
std::vector<std::string> values_where(std::vector<T> StorageRule::*list, Fits fits) {
  std::vector<T> found;
  for (const StorageRule& rule : storage_rules()) {
    if (!fits(rule)) continue;
    for (const T value : rule.*list) {
      if (!has(found, value)) found.push_back(value);
    }
  }
  return names_of(found);
}

bool is_bound(const StorageRule& rule) { return has(rule.backings, Backing::hbm); }

[[noreturn]] void refuse_stock(const std::string& needs) {
  fail(Exit::usage, "storage.policy stock reproduces vLLM's shared tables: it needs {}", needs);
}

// vLLM's own path is one block: the key that leaves it is named, not the policy.
void check_stock(const StorageChoice& choice) {
  if (choice.policy != PolicyKind::stock) return;
  for (const StorageRule& rule : storage_rules()) {
    if (rule.policies != std::vector{PolicyKind::stock}) continue;
    if (!has(rule.modes, choice.mode)) {
      refuse_stock(fmt::format("parallel.table_mode {}, found {}", name(rule.modes.front()), name(choice.mode)));
    }
    if (!has(rule.backings, choice.backing)) {
      refuse_stock(fmt::format("storage.backing {}, found {}", name(rule.backings.front()), name(choice.backing)));
    }
    if (!has(rule.copies, choice.copies)) {
      refuse_stock(fmt::format("storage.copies {}, found {}", name(rule.copies.front()), name(choice.copies)));
    }
  }
}

}  // namespace

const std::vector<StorageRule>& storage_rules() {
  using enum Backing;
  using enum PolicyKind;
  const std::vector<Backing> with_descriptor{shm, memfd, hugetlb_2m, hugetlb_1g, shm_thp};
  const std::vector<PolicyKind> of_the_kernel{none, bind, preferred, interleave, weighted, consumer};
  const std::vector<PolicyKind> placing{bind, interleave, weighted, consumer};
  static const std::vector<StorageRule> rules{
      {with_descriptor,
       {TableMode::shared, TableMode::dp_sharded},
       of_the_kernel,
       {Copies::one},
       "a descriptor goes to every reader"},
      {{shm, memfd}, {TableMode::private_}, of_the_kernel, {Copies::one}, "a shared object with one reader"},
      {{anon, anon_thp},
       {TableMode::private_, TableMode::dp_sharded},
       of_the_kernel,
       {Copies::one},
       "memory of one process, so that each table has one reader"},
      {{shm}, {TableMode::shared}, {stock}, {Copies::one}, "vLLM's own path, with `storage.pretouch` `none`"},
      {with_descriptor,
       {TableMode::shared},
       placing,
       {Copies::per_numa_node},
       "each copy is bound to its node, in place of the policy; a policy that leaves the node open contradicts that"},
      {{cuda_host_numa},
       {TableMode::shared, TableMode::private_, TableMode::dp_sharded},
       {bind, consumer},
       {Copies::one},
       "one NUMA node a table: the driver allocates on the node named"},
      {{cuda_host_numa},
       {TableMode::shared},
       {bind, consumer},
       {Copies::per_numa_node},
       "as above, one allocation a node"},
      {{hbm, stub},
       {TableMode::shared, TableMode::private_, TableMode::dp_sharded},
       {none, stock, bind, preferred, interleave, weighted, consumer},
       {Copies::one},
       "bounds, for controls: no table in host memory, so that the policy has nothing to place"},
  };
  return rules;
}

bool is_valid(const StorageChoice& choice) {
  const auto& rules = storage_rules();
  return std::any_of(rules.begin(), rules.end(), [&](const StorageRule& rule) {
    return has(rule.backings, choice.backing) && has(rule.modes, choice.mode) && has(rule.policies, choice.policy) &&
           has(rule.copies, choice.copies);
  });
}

void check_storage_choice(const StorageChoice& choice) {
  if (is_valid(choice)) return;
  check_stock(choice);
  const auto serves = [&](const StorageRule& rule) {
    return has(rule.backings, choice.backing) && has(rule.modes, choice.mode);
  };
  const auto places = [&](const StorageRule& rule) { return serves(rule) && has(rule.policies, choice.policy); };
  const std::vector<std::string> policies = values_where(&StorageRule::policies, serves);
  if (policies.empty()) {
    const auto others = [&](const StorageRule& rule) { return has(rule.modes, choice.mode) && !is_bound(rule); };
    fail(Exit::usage, "storage.backing {} cannot serve parallel.table_mode {}; backings that can: {}",
         name(choice.backing), name(choice.mode), fmt::join(values_where(&StorageRule::backings, others), ", "));
  }
  if (std::find(policies.begin(), policies.end(), name(choice.policy)) == policies.end()) {
    fail(Exit::usage,
         "storage.policy {} does not go with storage.backing {} in parallel.table_mode {}; policies that do: {}",
         name(choice.policy), name(choice.backing), name(choice.mode), fmt::join(policies, ", "));
  }
  const auto copied = [&](const StorageRule& rule) { return serves(rule) && has(rule.copies, choice.copies); };
  const std::vector<std::string> with_copies = values_where(&StorageRule::policies, copied);
  if (!with_copies.empty()) {
    fail(Exit::usage, "storage.copies {} binds each copy to its node, which storage.policy {} leaves open; use {}",
         name(choice.copies), name(choice.policy), fmt::join(with_copies, ", "));
  }
  fail(Exit::usage, "storage.copies {} does not go with storage.backing {} in parallel.table_mode {}; use {}",
       name(choice.copies), name(choice.backing), name(choice.mode),
       fmt::join(values_where(&StorageRule::copies, places), ", "));
}

std::string validity_reference() {
  std::string page = "| `storage.backing` | `parallel.table_mode` | `storage.policy` | `storage.copies` | why |\n";
  page += "|---|---|---|---|---|\n";
  const auto cell = [](const std::vector<std::string>& values) { return fmt::format("{}", fmt::join(values, ", ")); };
  for (const StorageRule& rule : storage_rules()) {
    page += fmt::format("| {} | {} | {} | {} | {} |\n", cell(names_of(rule.backings)), cell(names_of(rule.modes)),
                        cell(names_of(rule.policies)), cell(names_of(rule.copies)), rule.why);
  }
  return page;
}

}  // namespace eb::plan
