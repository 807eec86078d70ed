#include "harness/cli/tables.h"

#include <gtest/gtest.h>

namespace eb::cli {
namespace {

using result::Json;

Json cell(const char* arm, const char* metric, double median, int n) {
  return {{"arm", arm},       {"metric", metric}, {"unit", "us"},    {"n", n},
          {"median", median}, {"q1", median - 1}, {"q3", median + 1}};
}

Json absent(const char* arm, const char* metric) {
  return {{"arm", arm},        {"metric", metric}, {"unit", "us"},  {"n", 0},
          {"median", nullptr}, {"q1", nullptr},    {"q3", nullptr}, {"reason", "not exchanged"}};
}

Json document() {
  return Json::parse(R"({
    "name": "b1", "question": "Early or late?", "complete": true,
    "arms": [
      {"name": "A", "control": false, "overrides": {"prefetch.submit": "early"},
       "provenance": {"kind": "stock", "text": "default flags"}, "replicas_uncoupled": true},
      {"name": "B", "control": false, "overrides": {"prefetch.submit": "at_consume"},
       "provenance": {"kind": "research", "text": "at_consume"}, "replicas_uncoupled": true}],
    "checks": {"passed": true, "ids_compared": 96, "rows_compared": 96, "slots": [1, 2]},
    "cells": [],
    "placement": {"snapshots": [
      {"reroll": 0, "arm": "A", "arms": ["A", "B"], "label": "after_load", "requested_policy": "interleave:0,1",
       "requested_shares": {"0": 0.5, "1": 0.5},
       "backings": [{"backing": 0, "observed_shares": {"0": 0.25, "1": 0.75}}]}]},
    "ledger": [{"reroll": 0, "arm": "A", "arms": ["A", "B"], "backing_bytes": 1048576,
      "observed": {"pss_bytes": 1048576, "backing_allocated_bytes": 1048576, "node_growth_bytes": {"value": null, "reason": "x"}},
      "deviation": {"pss": 0.0, "backing_allocated": 0.0, "node_growth": null}}],
    "comparisons": [{"arms": ["A", "B"], "text": "no verdict: one re-roll"}],
    "warnings": [{"code": "oversubscribed", "text": "12 threads on 2 CPUs.", "next_step": "Allow more CPUs.", "figures": {}}],
    "failures": []
  })");
}

TEST(Tables, WholePage) {
  Json doc = document();
  doc["cells"] = {cell("A", "step_us", 1234.5, 16),
                  cell("A", "lookup_us", 30, 16),
                  cell("A", "lookup_us.l1", 12.345, 16),
                  cell("A", "lookup_us.l14", 4, 16),
                  absent("A", "ids_us"),
                  cell("B", "step_us", 2000, 16),
                  cell("B", "lookup_us", 31, 16),
                  cell("B", "lookup_us.l1", 13, 16),
                  cell("B", "lookup_us.l14", 5, 16),
                  absent("B", "ids_us")};
  EXPECT_EQ(result_tables(doc, "results/b1", false),
            R"(b1: Early or late?
  A: prefetch.submit = early  [stock: default flags]
    replicas_uncoupled: nothing in a step ties the replicas together
  B: prefetch.submit = at_consume  [research: at_consume]
    replicas_uncoupled: nothing in a step ties the replicas together

Checks passed: 96 ids and 96 rows equal the reference, in 2 slots.

  us a step: median [q1-q3] n                       A                       B
  lookup_us                    30.00 [29.00-31.00] 16  31.00 [30.00-32.00] 16
  lookup_us.l1                 12.35 [11.35-13.35] 16  13.00 [12.00-14.00] 16
  lookup_us.l14                4.000 [3.000-5.000] 16  5.000 [4.000-6.000] 16
  step_us                         1234 [1234-1236] 16     2000 [1999-2001] 16
  ids_us: not here: not exchanged

Pages by NUMA node
  backing                                                requested  after_register            after_load  steady
  re-roll 0 (A, B) backing 0  interleave:0,1: N0 50.0 %, N1 50.0 %               -  N0 25.0 %, N1 75.0 %       -

Memory of the tables after load
  re-roll     ledger                 PSS             backing  node memory
  0 (A, B)  1.00 MiB  1.00 MiB (+0.00 %)  1.00 MiB (+0.00 %)      unknown

B against A: no verdict: one re-roll
warning: oversubscribed: 12 threads on 2 CPUs. Allow more CPUs.
Result: results/b1
)");
}

TEST(Tables, AFailedRunShowsNoFigures) {
  Json doc = document();
  doc["complete"] = false;
  doc["checks"]["passed"] = false;
  doc["failures"] = {{{"text", "rank 2: layer 0 differs"}, {"exit", 5}, {"during", "x"}}};
  const std::string text = result_tables(doc, "r", false);
  EXPECT_NE(text.find("Checks FAILED"), std::string::npos);
  EXPECT_NE(text.find("failure: rank 2: layer 0 differs"), std::string::npos);
  EXPECT_NE(text.find("Result (not complete): r"), std::string::npos);
  EXPECT_EQ(text.find("median"), std::string::npos);
}

TEST(Tables, Numbers) {
  EXPECT_EQ(short_number(0.5), "0.500");
  EXPECT_EQ(short_number(12.345), "12.35");
  EXPECT_EQ(short_number(123.45), "123.5");
  EXPECT_EQ(short_number(12345.6), "12346");
}

}  // namespace
}  // namespace eb::cli
