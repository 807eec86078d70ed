// Every combination of table_mode x backing x policy x copies: the table says yes exactly where these rules, written
// down a second time, say yes, and a scenario is accepted exactly there.
#include "harness/plan/validity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "harness/base/error.h"
#include "harness/base/os.h"
#include "harness/plan/unbuilt.h"
#include "harness/plan/values.h"

namespace eb::plan {
namespace {

using ::testing::HasSubstr;

// How each policy is written in a scenario.
std::string written(PolicyKind policy) {
  switch (policy) {
    case PolicyKind::bind:
      return "bind:0";
    case PolicyKind::preferred:
      return "preferred:0";
    case PolicyKind::interleave:
      return "interleave:0,1";
    case PolicyKind::weighted:
      return "weighted:0=3,1=1";
    default:
      return name(policy);
  }
}

template <typename Visit>
void for_every_choice(Visit visit) {
  for (const auto& mode : table_modes()) {
    for (const auto& backing : backings()) {
      for (const auto& policy : policy_kinds()) {
        for (const auto& copies : copies_kinds()) visit({mode.second, backing.second, policy.second, copies.second});
      }
    }
  }
}

// The rules in other words than the table's.
bool expected(const StorageChoice& c) {
  const bool bound = c.backing == Backing::hbm || c.backing == Backing::stub;
  const bool private_memory = c.backing == Backing::anon || c.backing == Backing::anon_thp;
  const bool copied = c.copies == Copies::per_numa_node;
  if (bound) return !copied;
  if (private_memory && c.mode == TableMode::shared) return false;
  const bool huge_file =
      c.backing == Backing::hugetlb_2m || c.backing == Backing::hugetlb_1g || c.backing == Backing::shm_thp;
  if (huge_file && c.mode == TableMode::private_) return false;
  if (c.policy == PolicyKind::stock) return c.backing == Backing::shm && c.mode == TableMode::shared && !copied;
  if (c.backing == Backing::cuda_host_numa && c.policy != PolicyKind::bind && c.policy != PolicyKind::consumer) {
    return false;
  }
  if (!copied) return true;
  return c.mode == TableMode::shared && c.policy != PolicyKind::none && c.policy != PolicyKind::preferred;
}

std::string text_of(const StorageChoice& c) {
  return fmt::format("{} {} {} {}", name(c.mode), name(c.backing), name(c.policy), name(c.copies));
}

// Empty: accepted.
std::string refusal(const StorageChoice& c) {
  const std::vector<Setting> settings{
      {"parallel.table_mode", name(c.mode)},
      {"storage.backing", name(c.backing)},
      {"storage.policy", written(c.policy)},
      {"storage.copies", name(c.copies)},
      {"device.backend", "auto"},
  };
  // Bounds are controls: such a scenario is one beside an arm that is none.
  const bool bound = c.backing == Backing::hbm || c.backing == Backing::stub;
  try {
    if (!bound) {
      static_cast<void>(parse_plan(R"({"name": "t", "model": {"table_scale": 0.0001}})", "", settings));
    } else {
      std::string control;
      for (const Setting& one : settings) {
        control += fmt::format("{}\"{}\": \"{}\"", control.empty() ? "" : ", ", one.key, one.value);
      }
      static_cast<void>(parse_plan(R"({"name": "t", "model": {"table_scale": 0.0001}})", "",
                                   {{"experiment.controls.c", "{" + control + "}"}}));
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage) << text_of(c);
    return error.what();
  }
  return "";
}

TEST(Validity, TheTableIsTheRules) {
  int choices = 0;
  int valid = 0;
  for_every_choice([&](const StorageChoice& c) {
    ++choices;
    valid += is_valid(c) ? 1 : 0;
    EXPECT_EQ(is_valid(c), expected(c)) << text_of(c);
  });
  EXPECT_EQ(choices, 3 * 10 * 7 * 2);
  EXPECT_GT(valid, 100);
  EXPECT_LT(valid, 200);
}

TEST(Validity, AScenarioIsAcceptedExactlyWhereTheTableSaysSo) {
  for_every_choice([&](const StorageChoice& c) {
    const std::string text = refusal(c);
    if (!is_valid(c)) {
      EXPECT_THAT(text, HasSubstr("storage.")) << text_of(c);
      EXPECT_THAT(text, ::testing::Not(HasSubstr("not in this version"))) << text_of(c);
    } else if (!text.empty()) {  // known, valid, and not built
      EXPECT_THAT(text, HasSubstr("not in this version")) << text_of(c);
    }
  });
}

TEST(Validity, NoCombinationIsInTwoBlocks) {
  std::set<std::string> seen;
  for (const StorageRule& rule : storage_rules()) {
    for (const TableMode mode : rule.modes) {
      for (const Backing backing : rule.backings) {
        for (const PolicyKind policy : rule.policies) {
          for (const Copies copies : rule.copies) {
            EXPECT_TRUE(seen.insert(text_of({mode, backing, policy, copies})).second)
                << text_of({mode, backing, policy, copies});
          }
        }
      }
    }
  }
}

TEST(Validity, RefusalsNameTheKeyAndWhatWouldDo) {
  const auto choice = [](TableMode mode, Backing backing, PolicyKind policy, Copies copies) {
    return refusal({mode, backing, policy, copies});
  };
  using enum PolicyKind;
  EXPECT_THAT(choice(TableMode::shared, Backing::anon, bind, Copies::one),
              HasSubstr("anon cannot serve parallel.table_mode shared; backings that can: shm, memfd, hugetlb-2m"));
  EXPECT_THAT(choice(TableMode::shared, Backing::cuda_host_numa, interleave, Copies::one),
              HasSubstr("storage.policy interleave does not go with storage.backing cuda-host-numa in "
                        "parallel.table_mode shared; policies that do: bind, consumer"));
  EXPECT_THAT(choice(TableMode::shared, Backing::shm, preferred, Copies::per_numa_node),
              HasSubstr("binds each copy to its node, which storage.policy preferred leaves open; use bind"));
  EXPECT_THAT(choice(TableMode::private_, Backing::shm, bind, Copies::per_numa_node),
              HasSubstr("storage.copies per-numa-node does not go with storage.backing shm in parallel.table_mode "
                        "private; use one"));
  EXPECT_THAT(choice(TableMode::shared, Backing::shm, stock, Copies::per_numa_node), HasSubstr("copies one"));
}

TEST(Validity, DriverMemoryLiesOnOneNode) {
  const std::vector<Setting> settings{{"storage.backing", "cuda-host-numa"}, {"storage.policy", "bind:0,1"}};
  try {
    static_cast<void>(parse_plan(R"({"name": "t", "model": {"table_scale": 0.0001}})", "", settings));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("lies on one NUMA node; storage.policy bind:0,1 names 2"));
  }
}

}  // namespace
}  // namespace eb::plan
